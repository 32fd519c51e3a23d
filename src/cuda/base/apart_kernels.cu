// SPDX-License-Identifier: Apache-2.0

#include "cuda/base/apart_kernels.h"
#include "cuda/base/launch.h"
#include "cuda/base/ptx.cuh"

namespace switchyard::cuda {
namespace {

constexpr std::uint32_t kLooksPerClock = 1024;
constexpr int kCodeThreads = 256;

// A peer may already be at the next call, so later words count as well.
__global__ void begin_call_kernel(MeterPeers peers, std::uint32_t* count, CallMarks* marks,
                                  std::uint64_t late_ns) {
  const std::uint32_t number = *count + 1;
  __syncwarp();
  if (threadIdx.x == 0) *count = number;
  const std::uint64_t start = globaltimer_ns();
  for (int peer = static_cast<int>(threadIdx.x); peer < peers.num_ranks; peer += kLanes) {
    store_relaxed_sys_u32(peers.windows.base[peer] + kAlignOffset + peers.rank * kAlignStride,
                          number);
  }
  for (int peer = static_cast<int>(threadIdx.x); peer < peers.num_ranks; peer += kLanes) {
    const std::byte* from = peers.windows.base[peers.rank] + kAlignOffset + peer * kAlignStride;
    for (std::uint32_t look = 1; static_cast<std::int32_t>(load_relaxed_sys_u32(from) - number) < 0;
         ++look) {
      if (look % kLooksPerClock == 0 && globaltimer_ns() - start > peers.timeout_ns) return;
    }
  }
  __syncwarp();
  if (threadIdx.x != 0) return;
  const std::uint64_t all_here = globaltimer_ns();
  std::uint64_t now = all_here;
  while (now - all_here < late_ns) now = globaltimer_ns();
  marks->all_here = all_here;
  marks->begin = now;
}

__global__ void end_call_kernel(CallMarks* marks) { marks->end = globaltimer_ns(); }

// Four chains, so that a warp has something to do while one of them waits. The multipliers come
// from memory, or the compiler would find the result.
#define SWITCHYARD_STEP \
  a = a * x + b;        \
  b = b * x + c;        \
  c = c * x + d;        \
  d = d * x + a;
#define SWITCHYARD_TIMES_4(what) what what what what
#define SWITCHYARD_TIMES_16(what) SWITCHYARD_TIMES_4(SWITCHYARD_TIMES_4(what))
#define SWITCHYARD_TIMES_256(what) SWITCHYARD_TIMES_16(SWITCHYARD_TIMES_16(what))
#define SWITCHYARD_TIMES_1024(what) SWITCHYARD_TIMES_4(SWITCHYARD_TIMES_256(what))

// 5 * 1024 steps of four instructions of 16 bytes.
__global__ void __launch_bounds__(kCodeThreads)
    other_code_kernel(uint4* memory, std::size_t num_vectors) {
  const std::size_t first = std::size_t{blockIdx.x} * kCodeThreads + threadIdx.x;
  const uint4 seed = memory[first % num_vectors];
  const std::uint32_t x = seed.x;
  std::uint32_t a = seed.x;
  std::uint32_t b = seed.y;
  std::uint32_t c = seed.z;
  std::uint32_t d = seed.w;
  SWITCHYARD_TIMES_1024(SWITCHYARD_STEP)
  SWITCHYARD_TIMES_1024(SWITCHYARD_STEP)
  SWITCHYARD_TIMES_1024(SWITCHYARD_STEP)
  SWITCHYARD_TIMES_1024(SWITCHYARD_STEP)
  SWITCHYARD_TIMES_1024(SWITCHYARD_STEP)
  const std::uint32_t sum = a ^ b ^ c ^ d;
  const std::size_t stride = std::size_t{gridDim.x} * kCodeThreads;
  for (std::size_t i = first; i < num_vectors; i += stride) {
    uint4 v = memory[i];
    v.x += sum;
    memory[i] = v;
  }
}

}  // namespace

void launch_begin_call(const MeterPeers& peers, std::uint32_t* count, CallMarks* marks,
                       std::uint64_t late_ns, cudaStream_t stream) {
  begin_call_kernel<<<1, kLanes, 0, stream>>>(peers, count, marks, late_ns);
  check_launch("begin_call_kernel");
}

void launch_end_call(CallMarks* marks, cudaStream_t stream) {
  end_call_kernel<<<1, 1, 0, stream>>>(marks);
  check_launch("end_call_kernel");
}

void launch_other_code(std::byte* memory, std::size_t num_bytes, int num_sms, cudaStream_t stream) {
  constexpr int kCtasPerSm = 2;
  launch_kernel(other_code_kernel, {kCtasPerSm * num_sms, kCodeThreads, 0, false, stream},
                "other_code_kernel", reinterpret_cast<uint4*>(memory), num_bytes / sizeof(uint4));
}

}  // namespace switchyard::cuda
