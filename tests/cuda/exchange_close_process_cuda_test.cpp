// SPDX-License-Identifier: Apache-2.0
//
// close() between GPUs of processes, with each way to share memory. The test itself never uses
// CUDA, because it forks the ranks.

#include "close_case.h"
#include "gpu.h"
#include "run_in_child.h"
#include "support/processes.h"
#include "support/shared.h"

namespace switchyard {
namespace {

using namespace test;

class ExchangeCloseProcessCudaTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ExchangeCloseProcessCudaTest, EndsForAllRanksAndKeepsRows) {
  REQUIRE_GPU_IN_CHILD();
  const std::string why = why_not(GetParam());
  if (!why.empty()) GTEST_SKIP() << GetParam() << ": " << why;
  for (const bool waits : {true, false}) {
    test::Shared<CloseFlags> flags;
    run_processes(2, [&](const Group& group) {
      const cuda::DeviceGuard guard(group.rank() % num_gpus());
      ExchangeOptions options;
      options.heap = GetParam();
      close_and_go_on(group, options, waits, *flags);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Heaps, ExchangeCloseProcessCudaTest, testing::Values("vmm", "ipc"),
                         [](const auto& heap) { return std::string(heap.param); });

}  // namespace
}  // namespace switchyard
