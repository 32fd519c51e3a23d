// SPDX-License-Identifier: Apache-2.0
//
// meter_kernels.h: kernels that measurements are made of: a gate that opens all GPUs at once, and
// the smallest ones that show what the machine can do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>

#include "cuda/exchange/exchange_args.h"

namespace switchyard::cuda {

inline constexpr int kMeterThreads = 512;
inline constexpr std::size_t kMeterRowBytes = kMeterThreads * 16;

/// Words in windows: the gate's at base, the ping's behind it.
struct MeterPeers {
  PeerTable windows;
  std::int32_t rank = 0;
  std::int32_t num_ranks = 1;
  std::uint64_t timeout_ns = 0;  ///< waits end after it, without a word
};
inline constexpr std::size_t kPingOffset = 128;

/// Ends when the host's `flag` has the value `call` on rank 0, which tells the others.
void launch_gate(const MeterPeers& peers, const std::uint32_t* flag, std::uint32_t call,
                 cudaStream_t stream);

/// Round trips to `peer`, counted on from `first`. The lower rank begins.
void launch_ping(const MeterPeers& peers, std::int32_t peer, std::uint32_t first, int num_trips,
                 cudaStream_t stream);

/// `bytes_each` into every peer's window at `offset` plus (own rank) * bytes_each.
void launch_push(const MeterPeers& peers, std::size_t offset, std::size_t bytes_each, int num_times,
                 int num_ctas, cudaStream_t stream);

/// One CTA; `num_in_memory` rows of kMeterRowBytes zeros.
void launch_touch_rows(std::byte* memory, std::int64_t num_in_memory, int num_rows,
                       cudaStream_t stream);

void launch_nothing(cudaStream_t stream);

}  // namespace switchyard::cuda
