// SPDX-License-Identifier: Apache-2.0
//
// What the compat views rely on: routing without rows, handles that can be used again, and places
// that do not depend on the exchange.

#include <gtest/gtest.h>

#include "compat/arguments.h"
#include "support/errors.h"
#include "support/ranks.h"
#include "unit/compat/compat_batch.h"

namespace switchyard {
namespace {

using namespace test;

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
    whole.send(own.x(), own.ids(), {}, Stream::host(), {});
    const Dispatched received = whole.receive();
    const std::vector<std::uint8_t> want = test::bytes_of(received.experts.rows);
    const std::vector<std::uint8_t> want_ids = test::bytes_of(received.topk_ids);
    whole.release();

    KeptDispatch alone(pool.get(compact()));
    EXPECT_EQ(&alone.exchange(), &whole.exchange());
    DispatchOptions options;
    options.routing_only = true;
    alone.send(own.x(), own.ids(), {}, Stream::host(), options);
    const Dispatched routing = alone.receive();
    EXPECT_EQ(test::bytes_of(routing.topk_ids), want_ids);
    const Dispatched again =
        alone.dispatch_again(pool.get(compact()), own.x(), {}, {}, Stream::host(), {});
    EXPECT_EQ(test::bytes_of(again.experts.rows), want);
    alone.release();

    ExchangeConfig other = compact();
    other.worst_case_rows = true;
    const Dispatched elsewhere =
        alone.dispatch_again(pool.get(other), own.x(), own.ids(), {}, Stream::host(), {});
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
    kept.send(own.x(), own.ids(), {}, Stream::host(), options);
    test::expect_invalid("passed routing_only", [&] { kept.receive(); });
    kept.send(own.x(), own.ids(), {}, Stream::host(), {});
    EXPECT_GE(kept.receive().host->num_rows, 0);
  });
}

TEST(KeptDispatchTest, ADispatchIsGivenUpWithItsOwner) {
  run_ranks(2, [](const Group& group) {
    const ViewShape shape{2, 7, 4, 6, 64};
    const ViewBatch own(shape, group.rank());
    ExchangePool pool(group);
    for (int round = 0; round < 3; ++round) {  // only one may be in flight
      KeptDispatch kept(pool.get(compact()));
      kept.send(own.x(), own.ids(), {}, Stream::host(), {});
      kept.receive();
    }
    SUCCEED();
  });
}

TEST(KeptDispatchTest, RowSourcesAreTheOriginsAsTensors) {
  for (const Layout layout : {Layout::kBatched, Layout::kExpanded, Layout::kCompact}) {
    run_ranks(kShape.num_ranks, [&](const Group& group) {
      const ViewBatch own(kShape, group.rank());
      ExchangeConfig config = compact();
      config.layout = layout;
      config.worst_case_rows = layout != Layout::kBatched;
      Exchange exchange(group, config);
      const Dispatched got = exchange.dispatch(own.x(), own.ids());
      const TensorView& rows = got.experts.rows;
      const std::int64_t num_rows = rows.num_elements() / kShape.hidden;
      const Tensor rank(DType::kI32, {num_rows});
      const Tensor token(DType::kI32, {num_rows});
      const Tensor k(DType::kI32, {num_rows});
      const Tensor counts(DType::kI32, {group.size()});
      exchange.write_row_sources(got.handle, {rank, token, counts, k});
      std::vector<std::int32_t> want_rank(static_cast<std::size_t>(num_rows), -1);
      std::vector<std::int32_t> want_token = want_rank;
      std::vector<std::int32_t> want_k = want_rank;
      for (const RowOrigin& origin : exchange.row_origins(got.handle)) {
        want_rank[static_cast<std::size_t>(origin.row)] = origin.rank;
        want_token[static_cast<std::size_t>(origin.row)] = origin.token;
        want_k[static_cast<std::size_t>(origin.row)] = origin.k;
      }
      for (std::int64_t n = 0; n < num_rows; ++n) {
        const auto at = static_cast<std::size_t>(n);
        EXPECT_EQ(rank.as<std::int32_t>()[n], want_rank[at]);
        EXPECT_EQ(token.as<std::int32_t>()[n], want_token[at]);
        EXPECT_EQ(k.as<std::int32_t>()[n], want_k[at]);
      }
      for (int r = 0; r < group.size(); ++r) {
        EXPECT_EQ(counts.as<std::int32_t>()[r],
                  got.host->rows_per_rank[static_cast<std::size_t>(r)]);
      }
      test::expect_invalid("write_row_sources: token is i32 [3]",
                           [&] { exchange.write_row_sources(got.handle, {.token = counts}); });
      exchange.release(got.handle);
    });
  }
}

TEST(KeptDispatchTest, EveryViewAsksForItsDevice) {
  run_ranks(1, [](const Group& group) {
    ExchangePool pool(group);
    const std::int32_t id = 0;
    const TensorView there = TensorView::of(&id, {1}, Device::cuda(0));
    pool.check_call("dispatch", Stream::host(), {{"x", TensorView::of(&id, {1})}});
    test::expect_invalid("dispatch: the stream is of cuda:0, must be of cpu", [&] {
      pool.check_call("dispatch", Stream::default_of(Device::cuda(0)), {});
    });
    test::expect_invalid("topk_idx", [&] {
      pool.check_call("dispatch", Stream::host(), {{"topk_idx", there}});
    });
    deep_ep::EventOverlap().current_stream_wait();  // nothing to wait for
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
  test::expect_invalid("6 scales for 10 elements", [&] { (void)scheme(10, 6); });
}

}  // namespace
}  // namespace switchyard
