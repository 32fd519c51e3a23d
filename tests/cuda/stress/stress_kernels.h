// SPDX-License-Identifier: Apache-2.0
//
// stress_kernels.h: the GPU generates what a step sends and checks what it receives. The host only
// says which step is next, and with graphs not even that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>

#include "stress_rule.h"

namespace switchyard::test {

/// The number of the step is *base + offset. Its routing is that of the step `back` before it,
/// whose numbers of tokens are those of `slot`.
struct StressStep {
  const std::uint32_t* base = nullptr;
  std::uint32_t offset = 0;
  std::uint32_t slot = 0;
  std::uint32_t back = 0;
};

/// A row that must arrive. k is -1 in token-major layouts.
struct StressRow {
  std::int32_t row;
  std::int32_t source;
  std::int32_t token;
  std::int32_t k;
};

/// What must arrive on this rank, derived from the ids of all ranks.
struct StressPlan {
  StressRow* rows = nullptr;          ///< room for as many as can arrive
  std::int32_t* counts = nullptr;     ///< [L + 1, P, chunks]
  std::int32_t* total = nullptr;      ///< [1]
  std::int32_t* num_rows = nullptr;   ///< [L]
  std::int64_t* first_row = nullptr;  ///< [L]
  std::int64_t capacity = 0;          ///< rows per expert in a batch
};

/// What this rank sends.
struct StressInput {
  std::uint32_t* tokens = nullptr;
  std::byte* scales = nullptr;
  std::byte* ids = nullptr;
  float* weights = nullptr;
  std::uint32_t* payload = nullptr;
  std::byte* output = nullptr;        ///< poisoned
  std::uint32_t* returned = nullptr;  ///< poisoned
};

/// What this rank received.
struct StressReceived {
  std::byte* rows = nullptr;
  std::byte* scales = nullptr;  ///< row-major
  const std::int32_t* num_rows = nullptr;
  const std::int64_t* first_row = nullptr;
  const std::int32_t* total_rows = nullptr;
  const std::int32_t* ids = nullptr;
  const float* weights = nullptr;
  std::uint32_t* payload = nullptr;
  const std::int32_t* num_dropped = nullptr;
};

/// What a rank returns for its rows.
struct StressResults {
  std::uint16_t* rows = nullptr;     ///< [N, H] bf16
  std::uint32_t* weights = nullptr;  ///< [N], in token-major layouts [N, K]
};

/// What came home.
struct StressOutput {
  std::byte* rows = nullptr;
  std::uint32_t* returned = nullptr;  ///< null: no weights were returned
  bool is_unweighted = false;         ///< reopened: weights are 1
};

enum class StressPart : std::uint32_t {
  kCount,
  kElement,
  kScale,
  kId,
  kWeight,
  kOutput,
  kPayload,
  kReturned
};

/// The first difference on a rank.
struct StressDifference {
  std::uint32_t part;  ///< a StressPart
  std::uint32_t step;
  std::int32_t row;  ///< for outputs: the token
  std::int32_t source;
  std::int32_t token;
  std::int32_t word;
  std::uint32_t want;
  std::uint32_t got;
};

/// In device memory.
struct StressTally {
  unsigned long long num_rows;     ///< received rows compared
  unsigned long long num_outputs;  ///< output rows compared
  unsigned long long num_bytes;    ///< bytes compared, of both
  unsigned long long num_wrong;    ///< wrong bytes
  unsigned long long num_injected;
  unsigned int has_difference;
  StressDifference difference;
};

struct StressLaunch {
  int num_ctas = 1;
  cudaStream_t stream = nullptr;
};

/// Load all kernels: a first launch would wait for running kernels, which may wait for it.
void load_make_kernels();
void load_check_kernels();
/// Generates tokens, scales, ids and weights of this rank, and the plan of what must arrive.
void launch_make(const StressShape& shape, const StressStep& step, const StressInput& input,
                 const StressPlan& plan, const StressLaunch& launch);
/// Compares everything received and writes the results for the rows.
void launch_check_rows(const StressShape& shape, const StressStep& step, const StressPlan& plan,
                       const StressReceived& received, const StressResults& results,
                       StressTally* tally, const StressLaunch& launch);
void launch_check_output(const StressShape& shape, const StressStep& step,
                         const StressOutput& output, StressTally* tally,
                         const StressLaunch& launch);
/// Holds the stream up.
void launch_pause(const StressShape& shape, const StressStep& step, StressPause where,
                  cudaStream_t stream);
/// Injects the fault that the test must find: changes a byte of a received row and, where there are
/// some, of a scale and a payload, in one step of seven.
void launch_spoil_row(const StressShape& shape, const StressStep& step, const StressPlan& plan,
                      const StressReceived& received, StressTally* tally, cudaStream_t stream);
void launch_spoil_output(const StressShape& shape, const StressStep& step,
                         const StressOutput& output, StressTally* tally, cudaStream_t stream);
/// Executes *base += count.
void launch_advance(std::uint32_t* base, std::uint32_t count, cudaStream_t stream);

}  // namespace switchyard::test
