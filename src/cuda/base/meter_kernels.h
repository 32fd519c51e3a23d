// SPDX-License-Identifier: Apache-2.0
//
// meter_kernels.h: kernels for measurements: a gate that releases all GPUs at once, and minimal
// kernels that show a machine's limits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>

#include "cuda/exchange/exchange_args.h"

namespace switchyard::cuda {

inline constexpr int kMeterThreads = 512;
inline constexpr std::size_t kMeterRowBytes = kMeterThreads * 16;

/// Arguments that the kernels share. A window begins with the word of the gate; the word of the
/// ping lies at kPingOffset.
struct MeterPeers {
  PeerTable windows;
  std::int32_t rank = 0;
  std::int32_t num_ranks = 1;
  std::uint64_t timeout_ns = 0;  ///< limit of each wait; a kernel that exceeds it just ends
};
inline constexpr std::size_t kPingOffset = 128;

/// The kernel ends when `flag`, in host memory that rank 0 polls, has the value `call`; rank 0
/// forwards the value to the other ranks.
void launch_gate(const MeterPeers& peers, const std::uint32_t* flag, std::uint32_t call,
                 cudaStream_t stream);

/// `num_trips` round trips with `peer`, with words that count up from `first`. The lower rank sends
/// first.
void launch_ping(const MeterPeers& peers, std::int32_t peer, std::uint32_t first, int num_trips,
                 cudaStream_t stream);

/// Stores `bytes_each` bytes into every peer's window, at `offset` + (own rank) * `bytes_each`,
/// `num_times` times.
void launch_push(const MeterPeers& peers, std::size_t offset, std::size_t bytes_each, int num_times,
                 int num_ctas, cudaStream_t stream);

/// One CTA reads and writes `num_rows` rows, one after another, in `memory`, which holds
/// `num_in_memory` rows of kMeterRowBytes zeros.
void launch_touch_rows(std::byte* memory, std::int64_t num_in_memory, int num_rows,
                       cudaStream_t stream);

void launch_nothing(cudaStream_t stream);

}  // namespace switchyard::cuda
