// SPDX-License-Identifier: Apache-2.0
//
// Windows of ranks that are threads. With fewer GPUs than ranks some share a GPU.

#include "heap/device_window.h"

#include <limits>
#include <vector>

#include "cuda/base/check.h"
#include "cuda/base/memory.h"
#include "engine/engine.h"
#include "gpu.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using test::expect_error;
using test::run_ranks;

int device_of(int rank) { return rank % test::num_gpus(); }

int value_of(int writer, int reader) { return 1000 * writer + reader + 1; }

void copy(void* to, const void* from, std::size_t bytes) {
  cuda::check_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "cudaMemcpy");
  cuda::check_cuda(cudaDeviceSynchronize(), "copy");
}

// Every rank writes a value to every rank, at the start and at the very end of the window.
void exchange_values(Control& control, const DeviceWindow& window) {
  const auto words = window.size_bytes() / sizeof(int);
  const auto size = static_cast<std::size_t>(control.size());
  ASSERT_GE(words, 2 * size);
  for (int peer = 0; peer < control.size(); ++peer) {
    auto* const to = reinterpret_cast<int*>(window.base(peer));
    const int value = value_of(control.rank(), peer);
    copy(to + control.rank(), &value, sizeof(value));
    copy(to + words - size + static_cast<std::size_t>(control.rank()), &value, sizeof(value));
  }
  control.barrier();
  std::vector<int> first(size);
  std::vector<int> last(size);
  const auto* const own = reinterpret_cast<const int*>(window.base(control.rank()));
  copy(first.data(), own, size * sizeof(int));
  copy(last.data(), own + words - size, size * sizeof(int));
  for (int writer = 0; writer < control.size(); ++writer) {
    EXPECT_EQ(first[static_cast<std::size_t>(writer)], value_of(writer, control.rank()));
    EXPECT_EQ(last[static_cast<std::size_t>(writer)], value_of(writer, control.rank()));
  }
  control.barrier();
}

TEST(DeviceWindowTest, EveryRankReachesEveryWindow) {
  REQUIRE_GPU();
  for (const int size : {1, 2, 3, 4, 8}) {
    for (const std::size_t bytes : {std::size_t{64}, std::size_t{4100}, std::size_t{5} << 20}) {
      run_ranks(size, [&](const Group& group) {
        const cuda::DeviceGuard guard(device_of(group.rank()));
        const auto window = make_device_window(group.engine(), device_of(group.rank()), bytes);
        EXPECT_EQ(window->kind(), HeapKind::kSameProcess);
        EXPECT_EQ(window->size_bytes(), bytes);
        exchange_values(group.control(), *window);
      });
    }
  }
}

TEST(DeviceWindowTest, SharedGpusAreCounted) {
  REQUIRE_GPU();
  run_ranks(4, [](const Group& group) {
    const auto window = make_device_window(group.engine(), 0, 4096);
    EXPECT_EQ(window->ranks_on_gpu(), 4);
    EXPECT_TRUE(window->is_shared_gpu());
    group.barrier();
  });
  const int size = test::num_gpus();
  run_ranks(size, [](const Group& group) {
    const auto window = make_device_window(group.engine(), group.rank(), 4096);
    EXPECT_EQ(window->ranks_on_gpu(), 1);
    EXPECT_FALSE(window->is_shared_gpu());
    group.barrier();
  });
}

TEST(DeviceWindowTest, ManyWindowsLeaveNoMemoryBehind) {
  REQUIRE_GPU();
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  constexpr int kRepeats = 20;
  std::size_t before = 0;
  std::size_t after = 0;
  std::size_t total = 0;
  const auto make_windows = [&](int repeats) {
    run_ranks(2, [&](const Group& group) {
      for (int i = 0; i < repeats; ++i) {
        const auto window = make_device_window(group.engine(), device_of(group.rank()), kBytes);
        group.barrier();
      }
    });
  };
  make_windows(1);  // contexts and kernels stay allocated
  cuda::check_cuda(cudaMemGetInfo(&before, &total), "cudaMemGetInfo");
  make_windows(kRepeats);
  cuda::check_cuda(cudaMemGetInfo(&after, &total), "cudaMemGetInfo");
  EXPECT_GT(after + kBytes, before);
}

TEST(DeviceWindowTest, WrongRequestsAreRefusedOnEveryRank) {
  REQUIRE_GPU();
  const auto refuse = [](Errc code, const std::string& phrase, int size, auto&& request) {
    run_ranks(size, [&](const Group& group) {
      expect_error(code, phrase, [&] { request(group.engine()); });
      const auto window = make_device_window(group.engine(), 0, 64);  // the group is unharmed
      group.barrier();
    });
  };
  refuse(Errc::kInvalidArgument, "rank 2 of 3: 0 bytes, must be at least 1", 3, [](Engine& engine) {
    (void)make_device_window(engine, 0, engine.control().rank() == 2 ? 0 : 64);
  });
  refuse(Errc::kInvalidArgument, "rank 1 asks for 128 bytes, but rank 0 for 64", 2,
         [](Engine& engine) {
           (void)make_device_window(engine, 0, engine.control().rank() == 1 ? 128 : 64);
         });
  refuse(Errc::kInvalidArgument, "rank 1 of 2: device 1000, must be from 0 to", 2,
         [](Engine& engine) {
           (void)make_device_window(engine, engine.control().rank() == 1 ? 1000 : 0, 64);
         });
  refuse(Errc::kInvalidArgument, "rank 0 of 2: device -1", 2,
         [](Engine& engine) { (void)make_device_window(engine, -1, 64); });
  refuse(Errc::kInvalidArgument, "overflows 64 bits", 2, [](Engine& engine) {
    (void)make_device_window(engine, 0, std::numeric_limits<std::size_t>::max());
  });
  refuse(Errc::kOutOfMemory, "rank 0 of 2", 2,
         [](Engine& engine) { (void)make_device_window(engine, 0, std::size_t{1} << 50); });
  refuse(Errc::kInvalidArgument, "heap \"wire\"", 2,
         [](Engine& engine) { (void)make_device_window(engine, 0, 64, "wire"); });
  refuse(Errc::kInvalidArgument, "rank 1 selects heap ipc, but rank 0 auto", 2, [](Engine& engine) {
    (void)make_device_window(engine, 0, 64, engine.control().rank() == 1 ? "ipc" : "auto");
  });
  refuse(Errc::kNotAvailable, "ipc: ranks 0 and 1 are threads of one process", 2,
         [](Engine& engine) { (void)make_device_window(engine, 0, 64, "ipc"); });
  refuse(Errc::kNotAvailable, "engine \"local\" cannot pass descriptors", 2,
         [](Engine& engine) { (void)make_device_window(engine, 0, 64, "vmm"); });
}

}  // namespace
}  // namespace switchyard
