// SPDX-License-Identifier: Apache-2.0
//
// run_rows.h: what rank 0 needs to know of the rows that a rank received, to compare them with the
// reference implementation: their places, and digests of their bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "switchyard/exchange_types.h"
#include "switchyard/expert_rows.h"

namespace switchyard::cli {

/// What the experts received and returned, in host memory; scales are row-major.
struct ServedRows {
  const ExpertRows& experts;
  TensorView topk_ids;       ///< may be absent
  TensorView expert_output;  ///< bf16
  std::vector<RowOrigin> origins;
};

struct ReceivedRow {
  std::int64_t place = 0;        ///< row of the receive buffer
  std::int64_t buffer_rows = 0;  ///< rows of that buffer, padding included
  std::int64_t token = 0;        ///< on its source rank
  std::uint64_t codes = 0;       ///< digest of the stored elements
  std::uint64_t scales = 0;      ///< digest of what dequantizes them
  std::int32_t micro_batch = 0;
  std::int32_t expert = -1;  ///< local; -1 in token-major classes
  std::int32_t source = 0;   ///< rank
  std::int32_t k = 0;        ///< as in RowOrigin
};

/// FNV-1a: another bit anywhere gives another digest.
std::uint64_t digest_of(std::span<const std::byte> bytes);

/// One entry per valid row, in the order of `served.origins`.
std::vector<ReceivedRow> describe_rows(const ServedRows& served, std::int64_t hidden,
                                       int micro_batch);

/// Called with the rows of each micro-batch before they are described. Only tests set it, to change
/// what a rank seems to have received.
inline std::function<void(ServedRows& served)> tamper_with_rows;

}  // namespace switchyard::cli
