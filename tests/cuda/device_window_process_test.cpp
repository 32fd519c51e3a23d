// SPDX-License-Identifier: Apache-2.0
//
// Windows of ranks that are processes, on every kind of heap. The test itself never uses CUDA,
// because it forks the ranks. With fewer GPUs than ranks some share a GPU.

#include <unistd.h>

#include <array>
#include <atomic>
#include <signal.h>

#include <gmock/gmock.h>

#include "core/clock.h"
#include "cuda/base/check.h"
#include "cuda/base/memory.h"
#include "engine/engine.h"
#include "gpu.h"
#include "heap/device_window.h"
#include "run_in_child.h"
#include "support/errors.h"
#include "support/observe.h"
#include "support/processes.h"
#include "support/shared.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::HasSubstr;

constexpr std::array<const char*, 2> kHandleHeaps{"vmm", "ipc"};
const test::ProcessOptions kSlow{.timeout_ms = 60'000, .deadline_ms = 110'000};

int device_of(int rank) { return rank % test::num_gpus(); }

void copy(void* to, const void* from, std::size_t bytes) {
  cuda::check_cuda(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), "cudaMemcpy");
  cuda::check_cuda(cudaDeviceSynchronize(), "copy");
}

void exchange_values(Control& control, const DeviceWindow& window) {
  for (int peer = 0; peer < control.size(); ++peer) {
    const int value = 1000 * control.rank() + peer;
    copy(reinterpret_cast<int*>(window.base(peer)) + control.rank(), &value, sizeof(value));
  }
  control.barrier();
  for (int peer = 0; peer < control.size(); ++peer) {
    int came = -1;  // first from peer to this rank, then the reverse, loaded over the link
    copy(&came, reinterpret_cast<int*>(window.base(control.rank())) + peer, sizeof(came));
    EXPECT_EQ(came, 1000 * peer + control.rank());
    copy(&came, reinterpret_cast<int*>(window.base(peer)) + control.rank(), sizeof(came));
    EXPECT_EQ(came, 1000 * control.rank() + peer);
  }
  control.barrier();
}

class DeviceWindowProcessTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    REQUIRE_GPU_IN_CHILD();
    const std::string why = test::why_not(GetParam());
    if (!why.empty()) GTEST_SKIP() << GetParam() << ": " << why;
  }
};

TEST_P(DeviceWindowProcessTest, EveryRankReachesEveryWindow) {
  for (const int size : {2, 3, 4}) {
    run_processes(
        size,
        [](const Group& group) {
          const int device = device_of(group.rank());
          const cuda::DeviceGuard guard(device);
          for (const std::size_t bytes : {std::size_t{64}, std::size_t{5} << 20}) {
            const auto window = make_device_window(group.engine(), device, bytes, GetParam());
            EXPECT_STREQ(name_of(window->kind()), GetParam());
            exchange_values(group.control(), *window);
          }
        },
        kSlow);
  }
}

TEST_P(DeviceWindowProcessTest, WindowsLeaveNoMemoryAndNoDescriptorBehind) {
  run_processes(
      2,
      [](const Group& group) {
        constexpr std::size_t kBytes = std::size_t{256} << 20;
        const int device = device_of(group.rank());
        const cuda::DeviceGuard guard(device);
        const auto make = [&] {
          const auto window = make_device_window(group.engine(), device, kBytes, GetParam());
          group.barrier();
        };
        make();  // the driver keeps contexts, kernels and descriptors
        group.barrier();
        const std::size_t before = free_bytes();
        const int files = num_open_files();
        group.barrier();
        for (int i = 0; i < 10; ++i) make();
        group.barrier();
        EXPECT_GT(free_bytes() + kBytes, before);
        EXPECT_EQ(num_open_files(), files);
        group.barrier();
      },
      kSlow);
}

// The other windows keep their contents; vmm even keeps the memory of the dead rank.
TEST_P(DeviceWindowProcessTest, KilledRankIsLostAndTheOthersKeepTheirMemory) {
  test::Shared<std::atomic<int>> num_ready;
  RankProcesses ranks(
      3,
      [&](const Group& group) {
        const int device = device_of(group.rank());
        const cuda::DeviceGuard guard(device);
        const auto window = make_device_window(group.engine(), device, 1 << 20, GetParam());
        exchange_values(group.control(), *window);
        ++*num_ready;
        try {
          group.control().wait({Phase::kDispatchReceive, 17, 1}, [] { return false; });
        } catch (const Error&) {
          const bool is_vmm = window->kind() == HeapKind::kVmm;
          for (const int owner : {group.rank(), is_vmm ? 1 : group.rank()}) {
            int value = -1;
            copy(&value, reinterpret_cast<int*>(window->base(owner)) + group.rank(), sizeof(value));
            EXPECT_EQ(value, 1000 * group.rank() + owner);
          }
          if (::testing::Test::HasFailure()) throw Error(Errc::kInternal, "memory is gone");
          throw;
        }
      },
      kSlow);
  const Deadline deadline = Deadline::after_ms(90'000);
  while (*num_ready < 3 && !deadline.expired()) usleep(1000);
  ASSERT_EQ(*num_ready, 3);
  ranks.send_signal(1, SIGKILL);
  const std::vector<RankOutcome> outcomes = ranks.wait();
  for (const std::size_t rank : {0u, 2u}) {
    ASSERT_TRUE(outcomes[rank].error) << outcomes[rank].output;
    EXPECT_EQ(outcomes[rank].error->code(), Errc::kPeerLost);
    EXPECT_THAT(outcomes[rank].error->what(), HasSubstr("rank 1 was lost"));
  }
}

TEST_P(DeviceWindowProcessTest, RankKilledWhileWindowsAreMadeIsLost) {
  test::Shared<std::atomic<int>> num_ready;
  RankProcesses ranks(
      3,
      [&](const Group& group) {
        const int device = device_of(group.rank());
        const cuda::DeviceGuard guard(device);
        (void)make_device_window(group.engine(), device, 1 << 20, GetParam());
        ++*num_ready;
        for (;;) (void)make_device_window(group.engine(), device, 1 << 20, GetParam());
      },
      kSlow);
  const Deadline deadline = Deadline::after_ms(90'000);
  while (*num_ready < 3 && !deadline.expired()) usleep(1000);
  ranks.send_signal(2, SIGKILL);
  const std::vector<RankOutcome> outcomes = ranks.wait();
  for (const std::size_t rank : {0u, 1u}) {
    ASSERT_TRUE(outcomes[rank].error) << outcomes[rank].output;
    EXPECT_EQ(outcomes[rank].error->code(), Errc::kPeerLost) << outcomes[rank].error->what();
  }
}

INSTANTIATE_TEST_SUITE_P(Heaps, DeviceWindowProcessTest, ::testing::ValuesIn(kHandleHeaps),
                         [](const auto& param) { return std::string(param.param); });

TEST(DeviceWindowAutoTest, ProcessesTakeAHeapThatWorks) {
  REQUIRE_GPU_IN_CHILD();
  run_processes(
      4,
      [](const Group& group) {
        const int device = device_of(group.rank());
        const cuda::DeviceGuard guard(device);
        const auto window = make_device_window(group.engine(), device, 1 << 20);
        EXPECT_NE(window->kind(), HeapKind::kSameProcess);
        EXPECT_EQ(window->is_shared_gpu(), test::num_gpus() < group.size());
        exchange_values(group.control(), *window);
      },
      kSlow);
}

class NcclWindowTest : public ::testing::Test {
 protected:
  void SetUp() override {
    num_gpus_ = test::num_gpus_in_child();
    if (num_gpus_ < 2) GTEST_SKIP() << num_gpus_ << " CUDA devices on this machine, needs two";
    const std::string why = test::why_not("nccl");
    if (!why.empty()) GTEST_SKIP() << why;
  }
  int num_gpus_ = 0;
};

TEST_F(NcclWindowTest, EveryRankReachesEveryWindow) {
  run_processes(
      std::min(num_gpus_, 4),
      [](const Group& group) {
        const cuda::DeviceGuard guard(group.rank());
        for (const std::size_t bytes : {std::size_t{64}, std::size_t{5} << 20}) {
          const auto window = make_device_window(group.engine(), group.rank(), bytes, "nccl");
          EXPECT_EQ(window->kind(), HeapKind::kNccl);
          exchange_values(group.control(), *window);
        }
      },
      kSlow);
}

TEST_F(NcclWindowTest, RankThatDiesBeforeItJoinsEndsTheWait) {
  RankProcesses ranks(
      2,
      [](const Group& group) {
        const cuda::DeviceGuard guard(group.rank());
        (void)make_device_window(group.engine(), group.rank(), 64, "nccl");
        group.barrier();
        if (group.rank() == 1) raise(SIGKILL);
        (void)make_device_window(group.engine(), group.rank(), 64, "nccl");
      },
      kSlow);
  const std::vector<RankOutcome> outcomes = ranks.wait();
  ASSERT_TRUE(outcomes[0].error) << outcomes[0].output;
  EXPECT_EQ(outcomes[0].error->code(), Errc::kPeerLost) << outcomes[0].error->what();
}

TEST(DeviceWindowAutoTest, WhatProcessesCannotUseIsRefused) {
  REQUIRE_GPU_IN_CHILD();
  run_processes(
      2,
      [](const Group& group) {
        expect_error(Errc::kNotAvailable, "same_process: ranks 0 and 1 are of two processes",
                     [&] { (void)make_device_window(group.engine(), 0, 64, "same_process"); });
        expect_error(Errc::kNotAvailable, "nccl: ", [&] {  // both ranks are on one GPU
          (void)make_device_window(group.engine(), 0, 64, "nccl");
        });
        expect_error(Errc::kOutOfMemory, "rank 0 of 2",
                     [&] { (void)make_device_window(group.engine(), 0, std::size_t{1} << 50); });
        const auto window = make_device_window(group.engine(), 0, 64);
        group.barrier();
      },
      kSlow);
}

}  // namespace
}  // namespace switchyard
