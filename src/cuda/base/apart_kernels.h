// SPDX-License-Identifier: Apache-2.0
//
// apart_kernels.h: kernels around calls that are timed one by one, apart from what lies between
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cuda_runtime_api.h>

#include "cuda/base/meter_kernels.h"

namespace switchyard::cuda {

/// Times of one call on the GPU's clock, in nanoseconds.
struct CallMarks {
  std::uint64_t all_here;  ///< every rank has come
  std::uint64_t begin;     ///< this rank begins, which may be later
  std::uint64_t end;
};

/// One warp waits until the same kernel runs on all ranks, and then for `late_ns`. `count` counts
/// these kernels; words of the ranks lie at kAlignOffset of the windows.
void launch_begin_call(const MeterPeers& peers, std::uint32_t* count, CallMarks* marks,
                       std::uint64_t late_ns, cudaStream_t stream);
void launch_end_call(CallMarks* marks, cudaStream_t stream);

/// Leaves the caches of the GPU as a large GEMM does: every SM runs 320 KiB of straight-line code,
/// and the grid reads and writes `num_bytes` of `memory`, a multiple of 16.
void launch_other_code(std::byte* memory, std::size_t num_bytes, int num_sms, cudaStream_t stream);

}  // namespace switchyard::cuda
