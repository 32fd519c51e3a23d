// SPDX-License-Identifier: Apache-2.0
//
// What the kernels of the floor carry: every peer gets all bytes of every rank, whichever way. The
// windows of all ranks lie on one GPU, and the kernels of the ranks run one after another.

#include "cuda/base/wire_kernels.h"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "cuda/base/check.h"
#include "cuda/base/launch.h"
#include "cuda/base/memory.h"
#include "gpu.h"

namespace switchyard::test {
namespace {

constexpr int kRanks = 3;
constexpr std::size_t kBytes = 5 * cuda::kWireGranule;
constexpr std::size_t kWindowBytes = (1 + kRanks) * kBytes;

using Launch = void (*)(const cuda::WireArgs&, const cuda::WireGrid&, cudaStream_t);

// No two words of all ranks are alike.
std::vector<std::uint32_t> words_of(int rank) {
  std::vector<std::uint32_t> words(kBytes / 4);
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] = static_cast<std::uint32_t>(i) * 64 + static_cast<std::uint32_t>(rank) + 1;
  }
  return words;
}

void expect_all_arrive(Launch launch, const cuda::WireGrid& grid) {
  std::vector<cuda::DeviceBuffer> windows;
  cuda::WireArgs args{0, kBytes, kBytes, 2, {}};
  for (int rank = 0; rank < kRanks; ++rank) {
    windows.emplace_back(kWindowBytes);
    std::byte* base = windows.back().data();
    args.peers.windows.base[rank] = base;
    cuda::check_cuda(cudaMemset(base, 0, kWindowBytes), "cudaMemset");
    cuda::check_cuda(cudaMemcpy(base, words_of(rank).data(), kBytes, cudaMemcpyDefault), "copy");
  }
  args.peers.num_ranks = kRanks;
  for (int rank = 0; rank < kRanks; ++rank) {
    args.peers.rank = rank;
    launch(args, grid, nullptr);
  }
  cuda::check_cuda(cudaDeviceSynchronize(), "carry");
  for (int to = 0; to < kRanks; ++to) {
    for (int from = 0; from < kRanks; ++from) {
      std::vector<std::uint32_t> got(kBytes / 4);
      const std::byte* at =
          args.peers.windows.base[to] + kBytes * (1 + static_cast<std::size_t>(from));
      cuda::check_cuda(cudaMemcpy(got.data(), at, kBytes, cudaMemcpyDefault), "copy");
      const bool is_own = from == to;  // a rank carries nothing to itself
      EXPECT_EQ(got, is_own ? std::vector<std::uint32_t>(kBytes / 4) : words_of(from))
          << from << " to " << to << ", " << grid.num_ctas << " CTAs";
    }
  }
}

TEST(WireKernelsTest, EveryWayCarriesAllBytesToAllPeers) {
  REQUIRE_GPU();
  const int major = cuda::device_attribute(cudaDevAttrComputeCapabilityMajor);
  for (const cuda::WireGrid grid : {cuda::WireGrid{1, false}, {3, false}, {7, false}, {9, true}}) {
    expect_all_arrive(cuda::launch_wire_stores, grid);
    expect_all_arrive(cuda::launch_wire_loads, grid);
    if (major >= 9) expect_all_arrive(cuda::launch_wire_bulk_copies, grid);
  }
}

}  // namespace
}  // namespace switchyard::test
