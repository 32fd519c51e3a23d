// SPDX-License-Identifier: Apache-2.0
//
// A layer run in micro-batches gives the same bits as the whole layer; ranks are threads. Every
// class and scheme in two or three micro-batches is a case of instruments/conformance.

#include <gmock/gmock.h>

#include "support/overlapped_layer.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::HasSubstr;

void check_overlap(int num_ranks, const OverlapCase& test) {
  run_ranks(num_ranks, [&](const Group& group) {
    OverlappedLayer layer(group, test);
    const std::vector<std::uint16_t> whole = layer.run(0);
    for (int count = test.num_micro_batches; count >= 1; --count) {
      EXPECT_EQ(layer.run(count), whole)
          << name_of(test.kind) << " " << name_of(test.scheme) << " " << name_of(test.reduce)
          << " P " << num_ranks << " rank " << group.rank() << " micro-batches " << count;
    }
    EXPECT_EQ(layer.run(0), whole);
  });
}

// 9 tokens over 5 or 16 micro-batches, some uneven or empty; rank 1 has no token, rank 2 has one.
TEST(ApplyOverlappedTest, EqualsApplyWithManyMicroBatches) {
  for (const int num_ranks : {1, 2, 4}) {
    check_overlap(num_ranks, {PrepareKind::kLowLatency, schemes::kFp8Token, Reduce::kPerRank, 5});
    check_overlap(num_ranks, {PrepareKind::kElasticPrefill, schemes::kNone, Reduce::kPerExpert, 5});
  }
  run_ranks(3, [](const Group& group) {
    OverlappedLayer layer(group,
                          {PrepareKind::kElasticDecode, schemes::kNone, Reduce::kPerRank, 16});
    EXPECT_EQ(layer.run(16), layer.run(0));
  });
}

TEST(ApplyOverlappedTest, TakesAllMicroBatchesOfTheKernelByDefault) {
  run_ranks(1, [](const Group& group) {
    OverlappedLayer layer(group, {PrepareKind::kLowLatency, schemes::kNone, Reduce::kPerRank, 3});
    const Tensor output(DType::kBF16, {layer.num_tokens(), OverlappedLayer::kHidden});
    std::vector<std::int64_t> rows;
    layer.kernel().set_inspector([&](const Prepared& prepared, const TensorView&) {
      EXPECT_EQ(dbo_current_micro_batch(), static_cast<int>(rows.size()));
      rows.push_back(prepared.host->num_rows);
    });
    apply_overlapped(layer.kernel(), layer.arguments(), output);
    EXPECT_EQ(rows.size(), 3u);
  });
}

TEST(ApplyOverlappedTest, RanksMustSplitAlike) {
  run_ranks(2, [](const Group& group) {
    OverlappedLayer layer(group, {});
    const Error error = error_of([&] { layer.run(group.rank() == 0 ? 2 : 1); });
    EXPECT_TRUE(error.code() == Errc::kInvalidArgument || error.code() == Errc::kAborted)
        << error.what();
    if (error.code() == Errc::kInvalidArgument) {
      EXPECT_THAT(error.what(), HasSubstr("passed max_tokens"));
    }
  });
}

// The experts of one rank's second micro-batch fail; every rank ends with that cause.
TEST(ApplyOverlappedTest, AnErrorInOneMicroBatchEndsEveryRank) {
  run_ranks(3, [](const Group& group) {
    OverlappedLayer layer(group, {});
    layer.kernel().set_inspector([&](const Prepared&, const TensorView&) {
      if (group.rank() == 2 && dbo_current_micro_batch() == 1) {
        throw Error(Errc::kOutOfMemory, "no memory for rows");
      }
    });
    const Error error = error_of([&] {
      layer.run(2);
      group.barrier();  // rank 1 has no tokens, so it waits for no results
    });
    EXPECT_EQ(error.code(), group.rank() == 2 ? Errc::kOutOfMemory : Errc::kAborted);
    EXPECT_THAT(error.what(), HasSubstr("no memory for rows"));
  });
}

TEST(ApplyOverlappedTest, ArgumentsAreCheckedBeforeAnythingIsSent) {
  run_ranks(1, [](const Group& group) {
    OverlappedLayer layer(group, {});
    for (const int count : {-1, 3}) {
      EXPECT_THAT(
          error_of([&] { layer.run(count); }).what(),
          HasSubstr("num_micro_batches is " + std::to_string(count) + ", must be from 1 to 2"));
    }
    const Tensor output(DType::kBF16, {layer.num_tokens() - 1, OverlappedLayer::kHidden});
    expect_invalid("output is bf16 [8, 136], must have 2 dimensions and 9 rows",
                   [&] { apply_overlapped(layer.kernel(), layer.arguments(), output); });
    const Tensor fitting(DType::kBF16, {layer.num_tokens(), OverlappedLayer::kHidden});
    PrepareArguments without_ids = layer.arguments();
    without_ids.topk_ids = {};
    EXPECT_THAT(error_of([&] { apply_overlapped(layer.kernel(), without_ids, fitting); }).what(),
                HasSubstr("apply_overlapped: topk_ids is"));
    EXPECT_EQ(layer.run(2), layer.run(0));
  });
}

}  // namespace
}  // namespace switchyard
