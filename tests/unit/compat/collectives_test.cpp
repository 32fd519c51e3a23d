// SPDX-License-Identifier: Apache-2.0

#include "switchyard/collectives.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "conformance/random_batch.h"
#include "quant/bf16.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using test::expect_invalid;
using test::run_ranks;

const std::vector<std::int64_t> kSizes{3, 0, 5};

TEST(CollectivesTest, RowsOfAllRanksFollowEachOther) {
  run_ranks(3, [](const Group& group) {
    Collectives collectives(group, 5);
    const std::int64_t rows = kSizes[static_cast<std::size_t>(group.rank())];
    Tensor x(DType::kI32, {rows, 2, 3});
    for (std::int32_t i = 0; i < rows * 6; ++i) x.as<std::int32_t>()[i] = 1000 * group.rank() + i;
    Tensor marks(DType::kU8, {rows});
    std::fill_n(marks.as<std::uint8_t>(), rows, static_cast<std::uint8_t>(group.rank() + 1));
    for (int round = 0; round < 2; ++round) {
      const std::vector<Tensor> got = collectives.all_gatherv({x, marks}, Stream::host(), kSizes);
      ASSERT_EQ(got[0].view().describe(), "i32 [8, 2, 3]");
      const std::vector<std::uint8_t> want{1, 1, 1, 3, 3, 3, 3, 3};
      EXPECT_EQ(std::vector<std::uint8_t>(got[1].as<std::uint8_t>(), got[1].as<std::uint8_t>() + 8),
                want);
      for (std::int32_t i = 0; i < 48; ++i) {
        EXPECT_EQ(got[0].as<std::int32_t>()[i], i < 18 ? i : 2000 + i - 18);
      }
    }
  });
}

TEST(CollectivesTest, EqualSizesNeedNoList) {
  run_ranks(2, [](const Group& group) {
    Collectives collectives(group, 4);
    const float own[] = {1.0f + static_cast<float>(group.rank()), 8.0f};
    const Tensor got = collectives.all_gatherv(TensorView::of(own, {2}));
    EXPECT_EQ(std::vector<float>(got.as<float>(), got.as<float>() + 4),
              (std::vector<float>{1, 8, 2, 8}));
    const Tensor sum = collectives.reduce_scatterv(got);
    EXPECT_EQ(std::vector<float>(sum.as<float>(), sum.as<float>() + 2),
              group.rank() == 0 ? (std::vector<float>{2, 16}) : (std::vector<float>{4, 16}));
  });
}

TEST(CollectivesTest, SumsRunInRankOrderAndRoundOnce) {
  constexpr int kRanks = 3;
  constexpr std::int64_t kHidden = 37;
  std::vector<reference::Table<float>> inputs;
  for (std::uint64_t r = 0; r < kRanks; ++r)
    inputs.push_back(conformance::random_table(8, kHidden, r));
  run_ranks(kRanks, [&](const Group& group) {
    Collectives collectives(group, 5);
    const auto rank = static_cast<std::size_t>(group.rank());
    Tensor x(DType::kBF16, {8, kHidden});
    std::transform(inputs[rank].data.begin(), inputs[rank].data.end(), x.as<std::uint16_t>(),
                   bf16_from_f32);
    const Tensor got = collectives.reduce_scatterv(x, Stream::host(), kSizes);
    ASSERT_EQ(got.shape(0), kSizes[rank]);
    const std::int64_t first = group.rank() == 0 ? 0 : 3;
    for (std::int64_t i = 0; i < got.view().num_elements(); ++i) {
      float sum = 0.0f;
      for (const auto& input : inputs) {
        sum += input.data[static_cast<std::size_t>(first * kHidden + i)];
      }
      EXPECT_EQ(got.as<std::uint16_t>()[i], bf16_from_f32(sum));
    }
  });
}

TEST(CollectivesTest, WrongSizesAreNamed) {
  run_ranks(2, [](const Group& group) {
    Collectives collectives(group, 4);
    const Tensor x(DType::kF32, {2, 2});
    const std::vector<std::int64_t> one{2};
    const std::vector<std::int64_t> other{1, 1};
    const std::vector<std::int64_t> large{2, 5};
    expect_invalid("1 sizes, must be 2", [&] { collectives.all_gatherv(x, Stream::host(), one); });
    expect_invalid("2 rows, but sizes", [&] { collectives.all_gatherv(x, Stream::host(), other); });
    expect_invalid("sizes[1] is 5", [&] { collectives.all_gatherv(x, Stream::host(), large); });
    expect_invalid("x has 2 rows, but sizes add up to 3", [&] {
      collectives.reduce_scatterv(x, Stream::host(), std::vector<std::int64_t>{1, 2});
    });
    expect_invalid("must divide", [&] {
      collectives.reduce_scatterv(Tensor(DType::kF32, {3, 2}));
    });
    expect_invalid("must be bf16, f16 or f32", [&] {
      collectives.reduce_scatterv(Tensor(DType::kI32, {2, 2}));
    });
    // Every rank is right about its own size and wrong about the other's.
    const std::vector<std::int64_t> mine =
        group.rank() == 0 ? std::vector<std::int64_t>{2, 3} : std::vector<std::int64_t>{3, 2};
    expect_invalid("every rank must pass the same sizes",
                   [&] { collectives.all_gatherv(x, Stream::host(), mine); });
    EXPECT_EQ(collectives.all_gatherv(x).shape(0), 4);
  });
}

// Every list adds up, and so do the ranks' own sizes, but rank 1 assigns rows differently.
TEST(CollectivesTest, AReduceScatterOfOtherSizesEndsTheGroup) {
  run_ranks(3, [](const Group& group) {
    Collectives collectives(group, 2);
    const bool is_wrong = group.rank() == 1;
    const std::vector<std::int64_t> sizes =
        is_wrong ? std::vector<std::int64_t>{1, 1, 2} : std::vector<std::int64_t>{2, 1, 1};
    test::expect_error(
        is_wrong ? Errc::kInvalidArgument : Errc::kAborted,
        is_wrong ? "every rank must pass the same sizes" : "sizes are not theirs", [&] {
          collectives.reduce_scatterv(Tensor(DType::kF32, {4, 2}), Stream::host(), sizes);
        });
  });
}

}  // namespace
}  // namespace switchyard
