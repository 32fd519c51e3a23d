// SPDX-License-Identifier: Apache-2.0

#include "cuda/base/check.h"
#include "cuda/base/meter_kernels.h"
#include "cuda/base/ptx.cuh"

namespace switchyard::cuda {
namespace {

// False: it did not come in time; whoever waits for this GPU's results hears of it otherwise.
__device__ bool await_word(const void* at, std::uint32_t value, std::uint64_t timeout_ns) {
  constexpr std::uint32_t kLooksPerClock = 1024;
  const std::uint64_t start = globaltimer_ns();
  for (std::uint32_t look = 1; load_relaxed_sys_u32(at) != value; ++look) {
    if (look % kLooksPerClock == 0 && globaltimer_ns() - start > timeout_ns) return false;
  }
  return true;
}

__global__ void gate_kernel(MeterPeers peers, const std::uint32_t* flag, std::uint32_t call) {
  const bool opens = peers.rank == 0;
  const void* at = opens ? static_cast<const void*>(flag) : peers.windows.base[peers.rank];
  if (!await_word(at, call, peers.timeout_ns)) return;
  for (int peer = 1; opens && peer < peers.num_ranks; ++peer) {
    store_relaxed_sys_u32(peers.windows.base[peer], call);
  }
}

__global__ void ping_kernel(MeterPeers peers, std::int32_t peer, std::uint32_t first,
                            int num_trips) {
  std::byte* there = peers.windows.base[peer] + kPingOffset;
  const std::byte* here = peers.windows.base[peers.rank] + kPingOffset;
  const bool begins = peers.rank < peer;
  for (std::uint32_t trip = first; trip < first + static_cast<std::uint32_t>(num_trips); ++trip) {
    if (begins) store_relaxed_sys_u32(there, trip);
    if (!await_word(here, trip, peers.timeout_ns)) return;
    if (!begins) store_relaxed_sys_u32(there, trip);
  }
}

__global__ void push_kernel(MeterPeers peers, std::size_t offset, std::size_t num_units,
                            int num_times) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  const std::size_t first = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const auto own = static_cast<std::size_t>(peers.rank) * num_units;
  for (int time = 0; time < num_times; ++time) {
    const auto word = static_cast<std::uint32_t>(time);
    for (std::size_t unit = first; unit < num_units; unit += stride) {
      for (int step = 1; step < peers.num_ranks; ++step) {
        const int peer = (peers.rank + step) % peers.num_ranks;
        auto* to = reinterpret_cast<uint4*>(peers.windows.base[peer] + offset) + own + unit;
        store_global_x4(to, word);
      }
    }
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

__global__ void nothing_kernel() {}

}  // namespace

void launch_gate(const MeterPeers& peers, const std::uint32_t* flag, std::uint32_t call,
                 cudaStream_t stream) {
  gate_kernel<<<1, 1, 0, stream>>>(peers, flag, call);
  check_launch("gate_kernel");
}

void launch_ping(const MeterPeers& peers, std::int32_t peer, std::uint32_t first, int num_trips,
                 cudaStream_t stream) {
  ping_kernel<<<1, 1, 0, stream>>>(peers, peer, first, num_trips);
  check_launch("ping_kernel");
}

void launch_push(const MeterPeers& peers, std::size_t offset, std::size_t bytes_each, int num_times,
                 int num_ctas, cudaStream_t stream) {
  push_kernel<<<static_cast<unsigned>(num_ctas), kMeterThreads, 0, stream>>>(
      peers, offset, bytes_each / sizeof(uint4), num_times);
  check_launch("push_kernel");
}

void launch_touch_rows(std::byte* memory, std::int64_t num_in_memory, int num_rows,
                       cudaStream_t stream) {
  touch_rows_kernel<<<1, kMeterThreads, 0, stream>>>(reinterpret_cast<uint4*>(memory),
                                                     num_in_memory, num_rows);
  check_launch("touch_rows_kernel");
}

void launch_nothing(cudaStream_t stream) {
  nothing_kernel<<<1, 32, 0, stream>>>();
  check_launch("nothing_kernel");
}

}  // namespace switchyard::cuda
