// SPDX-License-Identifier: Apache-2.0
//
// How many bytes are in flight decides how fast a CTA carries them. Loads and stores: 1024 threads
// per SM with eight vectors each. Bulk copies: one thread keeps rows of 16 KiB in flight in a ring
// of all the shared memory that an SM has. Consecutive blocks go to different peers.

#include "cuda/base/launch.h"
#include "cuda/base/ptx.cuh"
#include "cuda/base/wire_kernels.h"

namespace switchyard::cuda {
namespace {

constexpr int kWireThreads = 1024;  // per SM
constexpr unsigned kWarpLanes = 32;
constexpr int kVectorsAtOnce = 8;
constexpr unsigned kBlockVectors = kVectorsAtOnce * kWarpLanes;
constexpr std::uint32_t kRowBytes = kWireGranule;
static_assert(kWireGranule % (kBlockVectors * sizeof(uint4)) == 0);

/// Item `nth` of all that a rank sends or receives: a part of what one peer gets.
struct WireItem {
  int peer;
  unsigned part;

  __device__ __forceinline__ WireItem(const MeterPeers& peers, unsigned nth) {
    const auto num_peers = static_cast<unsigned>(peers.num_ranks - 1);
    part = nth / num_peers;
    const int turned = peers.rank + 1 + static_cast<int>(nth - part * num_peers);
    peer = turned < peers.num_ranks ? turned : turned - peers.num_ranks;
  }
};

__device__ __forceinline__ std::byte* landing_of(const WireArgs& a, int from, int to) {
  return a.peers.windows.base[to] + a.landing + static_cast<std::size_t>(from) * a.bytes;
}

template <bool kLoadsFromPeers>
__global__ void __launch_bounds__(kWireThreads)
    wire_vectors_kernel(const __grid_constant__ WireArgs a) {
  const unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
  const unsigned num_warps = gridDim.x * blockDim.x / kWarpLanes;
  const auto blocks_each = static_cast<unsigned>(a.bytes / (kBlockVectors * sizeof(uint4)));
  const unsigned num_blocks = blocks_each * static_cast<unsigned>(a.peers.num_ranks - 1);
  const int rank = a.peers.rank;
#pragma unroll 1
  for (int time = 0; time < a.num_times; ++time) {
#pragma unroll 1
    for (unsigned block = thread / kWarpLanes; block < num_blocks; block += num_warps) {
      const WireItem item(a.peers, block);
      const int from_rank = kLoadsFromPeers ? item.peer : rank;
      const int to_rank = kLoadsFromPeers ? rank : item.peer;
      const std::size_t first = std::size_t{item.part} * kBlockVectors + threadIdx.x % kWarpLanes;
      const auto* from =
          reinterpret_cast<const uint4*>(a.peers.windows.base[from_rank] + a.source) + first;
      auto* to = reinterpret_cast<uint4*>(landing_of(a, from_rank, to_rank)) + first;
      uint4 vectors[kVectorsAtOnce];
#pragma unroll
      for (int i = 0; i < kVectorsAtOnce; ++i) vectors[i] = __ldcg(from + i * kWarpLanes);
#pragma unroll
      for (int i = 0; i < kVectorsAtOnce; ++i) {
        const uint4 v = vectors[i];
        store_relaxed_sys(to + i * kWarpLanes, {v.x, v.y, v.z, v.w});
      }
    }
  }
}

/// A ring of 2 kPending stages: a stage is loaded again once all stores but the last kPending have
/// read theirs.
template <int kPending>
__global__ void __launch_bounds__(kWarpLanes) wire_bulk_kernel(const __grid_constant__ WireArgs a) {
  constexpr unsigned kStages = 2 * kPending;
  extern __shared__ __align__(128) std::byte stages[];
  __shared__ std::uint64_t arrived[kStages];
  if (threadIdx.x != 0) return;
  for (std::uint64_t& barrier : arrived) init_barrier(&barrier);
  fence_barrier_init();
  const auto rows_each = static_cast<unsigned>(a.bytes / kRowBytes);
  const unsigned num_rows = rows_each * static_cast<unsigned>(a.peers.num_ranks - 1);
  const unsigned own_rows = num_rows > blockIdx.x ? (num_rows - 1 - blockIdx.x) / gridDim.x + 1 : 0;
  const unsigned count = own_rows * static_cast<unsigned>(a.num_times);
  const auto item_of = [&](unsigned i) {
    return WireItem(a.peers, blockIdx.x + i % own_rows * gridDim.x);
  };
  const std::byte* source = a.peers.windows.base[a.peers.rank] + a.source;
  const auto load = [&](unsigned i) {
    const unsigned stage = i % kStages;
    arrive_expecting(&arrived[stage], kRowBytes);
    bulk_copy_to_shared(stages + stage * kRowBytes,
                        source + std::size_t{item_of(i).part} * kRowBytes, kRowBytes,
                        &arrived[stage]);
  };
  for (unsigned i = 0; i < kPending && i < count; ++i) load(i);
#pragma unroll 1
  for (unsigned i = 0; i < count; ++i) {
    const unsigned stage = i % kStages;
    while (!try_wait_barrier(&arrived[stage], i / kStages & 1)) {
    }
    const WireItem item = item_of(i);
    bulk_copy_to_global(landing_of(a, a.peers.rank, item.peer) + std::size_t{item.part} * kRowBytes,
                        stages + stage * kRowBytes, kRowBytes);
    commit_bulk_group();
    wait_bulk_groups_read<kPending>();
    if (i + kPending < count) load(i + kPending);
  }
  wait_bulk_groups<0>();
}

template <bool kLoadsFromPeers>
void launch_vectors(const WireArgs& args, const WireGrid& grid, const char* name,
                    cudaStream_t stream) {
  const int threads = grid.is_shared_sm ? kWireThreads / 2 : kWireThreads;
  launch_kernel(wire_vectors_kernel<kLoadsFromPeers>, {grid.num_ctas, threads, 0, false, stream},
                name, args);
}

template <int kPending>
void launch_bulk(const WireArgs& args, const WireGrid& grid, cudaStream_t stream) {
  constexpr std::size_t kSharedBytes = std::size_t{2 * kPending} * kRowBytes;
  allow_shared_memory(wire_bulk_kernel<kPending>, kSharedBytes, "wire_bulk_kernel");
  launch_kernel(wire_bulk_kernel<kPending>,
                {grid.num_ctas, static_cast<int>(kWarpLanes), kSharedBytes, false, stream},
                "wire_bulk_kernel", args);
}

}  // namespace

void launch_wire_stores(const WireArgs& args, const WireGrid& grid, cudaStream_t stream) {
  launch_vectors<false>(args, grid, "wire_stores", stream);
}

void launch_wire_loads(const WireArgs& args, const WireGrid& grid, cudaStream_t stream) {
  launch_vectors<true>(args, grid, "wire_loads", stream);
}

void launch_wire_bulk_copies(const WireArgs& args, const WireGrid& grid, cudaStream_t stream) {
  if (grid.is_shared_sm) return launch_bulk<3>(args, grid, stream);
  launch_bulk<6>(args, grid, stream);
}

}  // namespace switchyard::cuda
