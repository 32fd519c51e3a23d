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

/// Arguments that the kernels share. A window begins with the word of the gate; two rows lie at
/// kRowsOffset.
struct MeterPeers {
  PeerTable windows;
  std::int32_t rank = 0;
  std::int32_t num_ranks = 1;
  std::uint64_t timeout_ns = 0;  ///< limit of each wait; a kernel that exceeds it just ends
};
inline constexpr std::size_t kAlignOffset = 128;  ///< of a word of each rank, for apart_kernels.h
inline constexpr int kAlignStride = 16;
inline constexpr std::size_t kRowsOffset = 4096;
static_assert(kAlignOffset + kMaxPushRanks * kAlignStride <= kRowsOffset);
inline constexpr std::size_t kMeterWindowBytes = kRowsOffset + 2 * kMeterRowBytes;

/// The kernel ends when `flag`, in host memory that rank 0 polls, has the value `call`; rank 0
/// forwards the value to the other ranks.
void launch_gate(const MeterPeers& peers, const std::uint32_t* flag, std::uint32_t call,
                 cudaStream_t stream);

/// One CTA stores a row into the window of `peer`, which does the same, and polls the data of its
/// own until the peer's row is there: rows `first`, `first` + 1, ..., `num_rows` of them.
void launch_swap_rows(const MeterPeers& peers, std::int32_t peer, std::uint32_t first, int num_rows,
                      cudaStream_t stream);

/// One CTA reads and writes `num_rows` rows, one after another, in `memory`, which holds
/// `num_in_memory` rows of kMeterRowBytes zeros.
void launch_touch_rows(std::byte* memory, std::int64_t num_in_memory, int num_rows,
                       cudaStream_t stream);

/// One warp is busy for so many cycles of its SM.
void launch_busy(int num_cycles, bool programmatic, cudaStream_t stream);

}  // namespace switchyard::cuda
