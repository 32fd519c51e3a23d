// SPDX-License-Identifier: Apache-2.0
//
// What the compat views rely on: routing without rows, handles that can be used again, and places
// that do not depend on the exchange.

#include "compat/kept_dispatch.h"

#include <gtest/gtest.h>

#include "support/errors.h"
#include "support/ranks.h"
#include "unit/compat/compat_batch.h"

namespace switchyard {
namespace {

using test::run_ranks;
using test::ViewBatch;
using test::ViewShape;

const ViewShape kShape{3, 7, 4, 6, 64};

ExchangeConfig compact() {
  ExchangeConfig config;
  config.num_experts = kShape.num_experts;
  config.num_topk = kShape.num_topk;
  config.hidden = kShape.hidden;
  config.max_tokens_per_rank = kShape.max_tokens;
  config.layout = Layout::kCompact;
  return config;
}

TEST(KeptDispatchTest, RowsFollowARoutingThatTravelledAlone) {
  run_ranks(kShape.num_ranks, [](const Group& group) {
    const ViewBatch own(kShape, group.rank());
    ExchangePool pool(group);
    KeptDispatch whole(pool.get(compact()));
    whole.send(own.x(), own.ids(), {}, {});
    const Dispatched received = whole.receive();
    const std::vector<std::uint8_t> want = test::bytes_of(received.experts.rows);
    const std::vector<std::uint8_t> want_ids = test::bytes_of(received.topk_ids);
    whole.release();

    KeptDispatch alone(pool.get(compact()));
    EXPECT_EQ(&alone.exchange(), &whole.exchange());
    DispatchOptions options;
    options.routing_only = true;
    alone.send(own.x(), own.ids(), {}, options);
    const Dispatched routing = alone.receive();
    EXPECT_EQ(test::bytes_of(routing.topk_ids), want_ids);
    const Dispatched again = alone.dispatch_again(pool.get(compact()), own.x(), {}, {}, {});
    EXPECT_EQ(test::bytes_of(again.experts.rows), want);
    alone.release();

    ExchangeConfig other = compact();
    other.worst_case_rows = true;
    const Dispatched elsewhere = alone.dispatch_again(pool.get(other), own.x(), own.ids(), {}, {});
    const std::vector<std::uint8_t> got = test::bytes_of(elsewhere.experts.rows);
    ASSERT_GE(got.size(), want.size());
    EXPECT_TRUE(std::equal(want.begin(), want.end(), got.begin()));
  });
}

TEST(KeptDispatchTest, RoutingOnlyOnOneRankIsAnErrorOnAll) {
  run_ranks(2, [](const Group& group) {
    const ViewShape shape{2, 7, 4, 6, 64};
    const ViewBatch own(shape, group.rank());
    ExchangePool pool(group);
    KeptDispatch kept(pool.get(compact()));
    DispatchOptions options;
    options.routing_only = group.rank() == 0;
    kept.send(own.x(), own.ids(), {}, options);
    test::expect_error(Errc::kInvalidArgument, "passed routing_only", [&] { kept.receive(); });
    kept.send(own.x(), own.ids(), {}, {});
    EXPECT_GE(kept.receive().num_rows, 0);
  });
}

TEST(KeptDispatchTest, ADispatchIsGivenUpWithItsOwner) {
  run_ranks(2, [](const Group& group) {
    const ViewShape shape{2, 7, 4, 6, 64};
    const ViewBatch own(shape, group.rank());
    ExchangePool pool(group);
    for (int round = 0; round < 3; ++round) {  // only one may be in flight
      KeptDispatch kept(pool.get(compact()));
      kept.send(own.x(), own.ids(), {}, {});
      kept.receive();
    }
    SUCCEED();
  });
}

TEST(KeptDispatchTest, SchemesFollowTheNumberOfScales) {
  const auto scheme = [](std::int64_t hidden, std::int64_t num) {
    const Tensor x(DType::kE4M3, {2, hidden});
    const Tensor scales(DType::kF32, {2, num});
    return scheme_of_rows("dispatch", x, scales);
  };
  EXPECT_EQ(scheme(7168, 56), schemes::kFp8Block);
  EXPECT_EQ(scheme(7168, 1), schemes::kFp8Token);
  EXPECT_EQ(scheme(7168, 14).block, 512);  // packed words
  EXPECT_EQ(scheme(200, 2).block, 100);
  test::expect_error(Errc::kInvalidArgument, "6 scales for 10 elements",
                     [&] { (void)scheme(10, 6); });
}

}  // namespace
}  // namespace switchyard
