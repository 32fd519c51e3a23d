// SPDX-License-Identifier: Apache-2.0
//
// What a GPU exchange refuses by its configuration alone: places of rows that need more bits than a
// route has. Needs no GPU.

#include "exchange/push/push_shape.h"

#include <string>

#include <gtest/gtest.h>

#include "support/errors.h"

namespace switchyard {
namespace {

constexpr int kTopk = 3;

struct PlaceCase {
  int num_experts;
  int num_ranks;
  std::int64_t limit;  ///< rows for one rank; a multiple of kTopk
};

ExchangeConfig config_of(const PlaceCase& c, Layout layout, std::int64_t rows) {
  ExchangeConfig config;
  config.num_experts = c.num_experts;
  config.num_topk = kTopk;
  config.hidden = 16;
  config.max_tokens_per_rank = rows / kTopk;
  config.layout = layout;
  return config;
}

TEST(PushShapeTest, RoutesHaveBitsForEveryPlace) {
  for (const PlaceCase& c :
       {PlaceCase{16384, 1, (1 << 18) - 1}, PlaceCase{16384, 4, (1 << 20) - 1}}) {
    SCOPED_TRACE(c.num_ranks);
    const ExchangeConfig below = config_of(c, Layout::kExpanded, c.limit - kTopk);
    EXPECT_EQ(make_push_exchange_shape(below, c.num_ranks, 0).main.shape.max_tokens,
              c.limit / kTopk - 1);
    const ExchangeConfig at = config_of(c, Layout::kExpanded, c.limit);
    const std::string limit = std::to_string(c.limit);
    test::expect_error(Errc::kNotSupported,
                       "max_tokens_per_rank " + std::to_string(c.limit / kTopk) +
                           " x num_topk 3 is " + limit + ", must be below " + limit + " with " +
                           std::to_string(c.num_experts / c.num_ranks) + " experts a rank",
                       [&] { make_push_exchange_shape(at, c.num_ranks, 0); });
  }
}

// Rows that are not placed by expert have no place in a route.
TEST(PushShapeTest, TokenMajorLayoutsHaveNoSuchLimit) {
  const PlaceCase c{16384, 1, (1 << 18) - 1};
  for (const Layout layout : {Layout::kCompact, Layout::kByRank}) {
    const ExchangeConfig config = config_of(c, layout, c.limit);
    EXPECT_EQ(make_push_exchange_shape(config, 1, 0).main.shape.max_tokens, c.limit / kTopk);
  }
}

}  // namespace
}  // namespace switchyard
