// SPDX-License-Identifier: Apache-2.0

#include "cuda/base/check.h"
#include "cuda/base/launch.h"
#include "cuda/base/meter_kernels.h"
#include "cuda/base/ptx.cuh"

namespace switchyard::cuda {
namespace {

// False: it did not come in time; whoever waits for this GPU's results hears of it otherwise.
template <typename IsThere>
__device__ bool await(IsThere is_there, std::uint64_t timeout_ns) {
  constexpr std::uint32_t kLooksPerClock = 1024;
  const std::uint64_t start = globaltimer_ns();
  for (std::uint32_t look = 1; !is_there(); ++look) {
    if (look % kLooksPerClock == 0 && globaltimer_ns() - start > timeout_ns) return false;
  }
  return true;
}

__device__ bool await_word(const void* at, std::uint32_t value, std::uint64_t timeout_ns) {
  return await([=] { return load_relaxed_sys_u32(at) == value; }, timeout_ns);
}

__global__ void gate_kernel(MeterPeers peers, const std::uint32_t* flag, std::uint32_t call) {
  const bool opens = peers.rank == 0;
  const void* at = opens ? static_cast<const void*>(flag) : peers.windows.base[peers.rank];
  if (!await_word(at, call, peers.timeout_ns)) return;
  for (int peer = 1; opens && peer < peers.num_ranks; ++peer) {
    store_relaxed_sys_u32(peers.windows.base[peer], call);
  }
}

// Each thread has a vector of the row, and every word of it is the row's number. A rank that has
// its peer's row `n` may overwrite row n - 1 of that peer, but not yet row n: two rows suffice.
__global__ void __launch_bounds__(kMeterThreads)
    swap_rows_kernel(MeterPeers peers, std::int32_t peer, std::uint32_t first, int num_rows) {
  for (std::uint32_t row = first; row < first + static_cast<std::uint32_t>(num_rows); ++row) {
    const std::size_t at = kRowsOffset + (row & 1) * kMeterRowBytes + threadIdx.x * sizeof(uint4);
    store_relaxed_sys(peers.windows.base[peer] + at, {row, row, row, row});
    const std::byte* own = peers.windows.base[peers.rank] + at;
    const bool is_there = await(
        [=] {
          std::uint32_t w[4];
          load_relaxed_sys(own, w);
          return w[0] == row && w[1] == row && w[2] == row && w[3] == row;
        },
        peers.timeout_ns);
    if (__syncthreads_and(static_cast<int>(is_there)) == 0) return;
  }
}

// The contents of a row (zeros) determine the next row, so no row can be loaded ahead of time.
__global__ void touch_rows_kernel(uint4* memory, std::int64_t num_in_memory, int num_rows) {
  std::int64_t row = 0;
  for (int i = 0; i < num_rows; ++i) {
    uint4* at = memory + row * kMeterThreads + threadIdx.x;
    const uint4 unit = __ldcg(at);
    __stcg(at, unit);
    __threadfence();
    const int is_odd = __syncthreads_or(static_cast<int>(unit.x));
    constexpr std::int64_t kStep = 1021;  // far apart
    row = (row + kStep + is_odd) % num_in_memory;
  }
}

__global__ void busy_kernel(int num_cycles) {
  follow_kernel();
  const long long start = clock64();
  while (clock64() - start < num_cycles) {
  }
}

}  // namespace

void launch_gate(const MeterPeers& peers, const std::uint32_t* flag, std::uint32_t call,
                 cudaStream_t stream) {
  gate_kernel<<<1, 1, 0, stream>>>(peers, flag, call);
  check_launch("gate_kernel");
}

void launch_swap_rows(const MeterPeers& peers, std::int32_t peer, std::uint32_t first, int num_rows,
                      cudaStream_t stream) {
  swap_rows_kernel<<<1, kMeterThreads, 0, stream>>>(peers, peer, first, num_rows);
  check_launch("swap_rows_kernel");
}

void launch_touch_rows(std::byte* memory, std::int64_t num_in_memory, int num_rows,
                       cudaStream_t stream) {
  touch_rows_kernel<<<1, kMeterThreads, 0, stream>>>(reinterpret_cast<uint4*>(memory),
                                                     num_in_memory, num_rows);
  check_launch("touch_rows_kernel");
}

void launch_busy(int num_cycles, bool programmatic, cudaStream_t stream) {
  launch_kernel(busy_kernel, {1, kLanes, 0, programmatic, stream}, "busy_kernel", num_cycles);
}

}  // namespace switchyard::cuda
