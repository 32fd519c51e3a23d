// SPDX-License-Identifier: Apache-2.0
//
// Exchange without routing: every rank gets every token, and the sums return, added from rank 0
// upwards. Compared with plain loops over what each rank is known to hold.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "switchyard/exchange.h"

#include "core/random.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

constexpr std::int64_t kHidden = 5;

// Element h of token t of `rank`, and the result of `rank` for it; sums of these f32 values round.
float token_value(int rank, std::int64_t t, std::int64_t h) {
  return static_cast<float>(
      random_normal(static_cast<std::uint64_t>(rank) + 1, static_cast<std::uint64_t>(t * 8 + h)));
}
float result_value(int rank, float token) {
  return token * std::ldexp(1.37f, 3 * (rank % 5)) + static_cast<float>(rank);
}

ExchangeConfig all_gather_config(const std::vector<std::int64_t>& sizes) {
  ExchangeConfig config;
  config.layout = Layout::kAllGather;
  config.hidden = kHidden;
  config.max_tokens_per_rank = *std::max_element(sizes.begin(), sizes.end());
  config.scheme.dtype = DType::kF32;
  config.combine_scheme.dtype = DType::kF32;
  return config;
}

void check_gathered(const Dispatched& got, const std::vector<std::int64_t>& sizes) {
  std::int64_t row = 0;
  for (std::size_t r = 0; r < sizes.size(); ++r) {
    EXPECT_EQ(got.rows_per_rank[r], sizes[r]);
    for (std::int64_t t = 0; t < sizes[r]; ++t, ++row) {
      for (std::int64_t h = 0; h < kHidden; ++h) {
        ASSERT_EQ(got.experts.rows.as<float>()[row * kHidden + h],
                  token_value(static_cast<int>(r), t, h))
            << "rank " << r << " token " << t;
      }
    }
  }
  EXPECT_EQ(got.num_rows, row);
  EXPECT_EQ(got.experts.rows.shape(0), row);
  EXPECT_TRUE(got.expert_load.empty());
}

// Gathers the tokens, lets each rank change every row, and scatters the sums.
void check_sizes(const Group& group, Exchange& exchange, const std::vector<std::int64_t>& sizes) {
  const int rank = group.rank();
  const std::int64_t num_tokens = sizes[static_cast<std::size_t>(rank)];
  const Tensor tokens(DType::kF32, {num_tokens, kHidden});
  for (std::int64_t i = 0; i < num_tokens * kHidden; ++i) {
    tokens.as<float>()[i] = token_value(rank, i / kHidden, i % kHidden);
  }
  const Dispatched got = exchange.dispatch(tokens, {});
  check_gathered(got, sizes);
  const Tensor results(DType::kF32, {got.num_rows, kHidden});
  for (std::int64_t i = 0; i < got.num_rows * kHidden; ++i) {
    results.as<float>()[i] = result_value(rank, got.experts.rows.as<float>()[i]);
  }
  const Tensor output(DType::kF32, {num_tokens, kHidden});
  exchange.combine(got.handle, results, output);
  for (std::int64_t i = 0; i < num_tokens * kHidden; ++i) {
    float sum = 0.0f;
    for (int r = 0; r < group.size(); ++r) {
      sum += result_value(r, token_value(rank, i / kHidden, i % kHidden));
    }
    ASSERT_EQ(output.as<float>()[i], sum) << "token " << i / kHidden;
  }
}

TEST(AllGatherTest, UnequalSizesAgainstAPlainSum) {
  // Sizes of the all-gather and reduce-scatter tests of vLLM's PyNccl communicator.
  const std::vector<std::int64_t> all_sizes{81, 20, 57, 52, 81, 5, 49, 49};
  for (const int num_ranks : {1, 2, 3, 5, 8}) {
    const std::vector<std::int64_t> sizes(all_sizes.begin(), all_sizes.begin() + num_ranks);
    ASSERT_NO_THROW(test::run_ranks(num_ranks, [&](const Group& group) {
      Exchange exchange(group, all_gather_config(sizes));
      check_sizes(group, exchange, sizes);
    }));
  }
}

// One exchange whose sizes change from call to call.
TEST(AllGatherTest, EmptyRanksAndNothingAtAll) {
  ASSERT_NO_THROW(test::run_ranks(4, [](const Group& group) {
    Exchange exchange(group, all_gather_config({7}));
    for (const auto& sizes : std::vector<std::vector<std::int64_t>>{
             {0, 5, 0, 3}, {0, 0, 0, 0}, {7, 0, 0, 0}, {0, 0, 0, 1}, {7, 7, 7, 7}}) {
      check_sizes(group, exchange, sizes);
    }
  }));
}

TEST(AllGatherTest, WorstCaseRowsHideTheSizes) {
  ASSERT_NO_THROW(test::run_ranks(3, [](const Group& group) {
    ExchangeConfig config = all_gather_config({4});
    config.worst_case_rows = true;
    Exchange exchange(group, config);
    const Tensor tokens(DType::kF32, {group.rank(), kHidden});
    DispatchOptions options;
    for (const std::int64_t max_tokens : {0, 2, 3}) {
      options.max_tokens = max_tokens;
      const Dispatched got = exchange.dispatch(tokens, {}, {}, options);
      EXPECT_EQ(got.experts.rows.shape(0), 3 * (max_tokens == 0 ? 4 : max_tokens));
      EXPECT_EQ(got.num_rows, 3);
      exchange.release(got.handle);
    }
  }));
}

}  // namespace
}  // namespace switchyard
