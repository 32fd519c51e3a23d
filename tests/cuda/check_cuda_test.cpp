// SPDX-License-Identifier: Apache-2.0
//
// Runs a few cases of `switchyard check --device cuda` in this process: they agree, unsupported
// ones say so, and a difference is detected.

#include <atomic>
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "conformance/check_case.h"
#include "conformance/exchange_suite.h"
#include "device/cuda_module.h"
#include "gpu.h"
#include "support/ranks.h"

namespace switchyard::conformance {
namespace {

using test::run_ranks;
using ::testing::HasSubstr;

const bool is_prepared = (prepare_for_shared_gpus(), true);

// Every n-th quick GPU case whose name starts with `prefix`.
std::vector<CheckCase> some(const std::string& prefix, std::size_t n) {
  std::vector<CheckCase> result;
  std::size_t i = 0;
  for (CheckCase& test : all_cases()) {
    if (test.device != "cuda" || !test.is_quick || !test.name.starts_with(prefix)) continue;
    if (i++ % n == 0) result.push_back(std::move(test));
  }
  return result;
}

TEST(CheckCudaTest, FunctionsOfTensorsAgree) {
  REQUIRE_GPU();
  for (const char* prefix : {"quantize/", "batched/", "permute/", "placement/"}) {
    const std::vector<CheckCase> cases = some(prefix, 9);
    EXPECT_GE(cases.size(), 4u) << prefix;
    for (const CheckCase& test : cases) EXPECT_NO_THROW(test.body(Group(), 5)) << test.name;
  }
}

TEST(CheckCudaTest, RoundsOfTheExchangeAgreeOrSayWhyNot) {
  REQUIRE_GPU();
  int num_tried = 0;
  for (const char* prefix :
       {"exchange/cuda/local/P1/", "exchange/cuda/local/P2/", "exchange/cuda/local/P3/"}) {
    for (const CheckCase& test : some(prefix, 6)) {
      std::mutex mutex;
      Agreement last;
      EXPECT_NO_THROW(run_ranks(test.num_ranks, [&](const Group& group) {
        const Agreement agreement = test.body(group, 5);
        const std::lock_guard lock(mutex);
        last = agreement;
      })) << test.name;
      EXPECT_NE(last.skipped.empty(), last.heap.empty()) << test.name;
      num_tried += last.skipped.empty() ? 1 : 0;
    }
  }
  EXPECT_GE(num_tried, 8);
}

TEST(CheckCudaTest, ClassesAndLayersAgreeOrSayWhyNot) {
  REQUIRE_GPU();
  int num_tried = 0;
  for (const char* prefix :
       {"classes/cuda/local/", "micro_batches/cuda/local/", "layers/cuda/local/"}) {
    for (const CheckCase& test : some(prefix, 12)) {
      std::atomic<int> num_agreed = 0;
      EXPECT_NO_THROW(run_ranks(test.num_ranks, [&](const Group& group) {
        if (test.body(group, 5).skipped.empty()) ++num_agreed;
      })) << test.name;
      num_tried += num_agreed == test.num_ranks ? 1 : 0;
    }
  }
  EXPECT_GE(num_tried, 12);
}

ExchangeCase plain_case() {
  ExchangeCase test;
  test.shape = {.num_experts = 8, .num_topk = 3, .hidden = 136, .none_share = 0.2};
  test.scheme = schemes::kFp8Block;
  test.reduce = Reduce::kPerRank;
  return test;
}

TEST(CheckCudaTest, NothingIsLeftOutOfAPlainRound) {
  REQUIRE_GPU();
  for (const Layout layout : {Layout::kBatched, Layout::kExpanded, Layout::kCompact}) {
    ExchangeCase test = plain_case();
    test.layout = layout;
    test.is_long = false;
    run_ranks(2, [&](const Group& group) {
      const Agreement agreement = check_exchange(group, test, test::gpu_of(group.rank()));
      EXPECT_EQ(agreement.skipped, "");
      EXPECT_THAT(agreement.left_out, ::testing::IsEmpty());
      EXPECT_TRUE(agreement.is_exact);
    });
  }
}

TEST(CheckCudaTest, OtherBitsAreADifference) {
  REQUIRE_GPU();
  Tamper tamper;
  tamper.combined = [](const TensorView& output, const TensorView&) {
    if (output.num_elements() > 0) *output.as<std::uint16_t>() ^= 1;
  };
  ExchangeCase test = plain_case();
  test.is_long = false;
  std::string what;
  try {
    run_ranks(2, [&](const Group& group) {
      check_exchange(group, test, test::gpu_of(group.rank()), tamper);
    });
  } catch (const std::exception& error) {
    what = error.what();
  }
  EXPECT_THAT(what, HasSubstr("] has other bits than the oracle's"));
}

}  // namespace
}  // namespace switchyard::conformance
