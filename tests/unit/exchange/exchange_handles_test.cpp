// SPDX-License-Identifier: Apache-2.0
//
// Handles: which ones can be used again, and that an exchange refuses another exchange's handles.

#include <cstring>
#include <optional>

#include "unit/exchange/small_exchange.h"

namespace switchyard {
namespace {

using namespace test;

TEST(ExchangeHandlesTest, OnlyReceivedHandlesCanBeUsedAgain) {
  run_ranks(1, [](const Group& group) {
    ExchangeConfig config = small_config();
    config.max_in_flight = 2;
    Exchange exchange(group, config);
    const Inputs in;
    const auto refused = [&](const DispatchHandle& handle, const char* words) {
      expect_invalid(words, [&] { exchange.dispatch_again(handle, in.tokens()); });
      expect_invalid(words, [&] { exchange.reopen(handle); });
    };
    refused(DispatchHandle(), "the handle is empty");
    const DispatchHandle sent = exchange.dispatch_send(in.tokens(), in.ids(), in.weights());
    refused(sent, "was sent by dispatch and not received");
    exchange.dispatch_receive(sent);
    exchange.release(exchange.reopen(sent));
    exchange.release(exchange.dispatch_again(sent, in.tokens()).handle);
    exchange.release(sent);
    exchange.release(exchange.reopen(sent));
    expect_works(exchange);
  });
}

// A handle may ask for its slot; others take the first free one.
TEST(ExchangeHandlesTest, SlotsMayBeChosen) {
  run_ranks(2, [](const Group& group) {
    ExchangeConfig config = small_config();
    config.max_in_flight = 2;
    Exchange exchange(group, config);
    const Inputs in;
    const auto dispatch = [&](std::int32_t slot) {
      return exchange.dispatch(in.tokens(), in.ids(), in.weights(), Stream::host(), {.slot = slot});
    };
    const Dispatched second = dispatch(1);
    for (const std::int32_t slot : {1, 2, -2}) {
      expect_invalid("must be a free one from 0 to 1", [&] { dispatch(slot); });
    }
    const Dispatched first = dispatch(-1);
    EXPECT_NE(first.experts.rows.data(), second.experts.rows.data());
    exchange.release(second.handle);
    const Dispatched again = dispatch(1);
    EXPECT_EQ(again.experts.rows.data(), second.experts.rows.data());
    exchange.release(again.handle);
    exchange.release(first.handle);
    expect_works(exchange);
  });
}

// Releases handles that were sent but not received, and returned but not collected, more often than
// there are slots.
TEST(ExchangeHandlesTest, AHandleIsGivenUpAtAnyStage) {
  run_ranks(2, [](const Group& group) {
    Exchange exchange(group, small_config());
    const Inputs in;
    for (int i = 0; i < 5; ++i) {
      exchange.release(exchange.dispatch_send(in.tokens(), in.ids(), in.weights()));
      const Dispatched got = dispatch_inputs(exchange, in);
      const Tensor rows = zeros_like(got.experts.rows);
      exchange.combine_send(got.handle, rows);
      exchange.release(got.handle);
    }
    expect_works(exchange);
  });
}

// Both handles have the same slot and number; they differ only in their exchange.
TEST(ExchangeHandlesTest, ResultsMayLieInMemoryOfTheExchange) {
  for (const Layout layout : {Layout::kBatched, Layout::kExpanded, Layout::kCompact}) {
    run_ranks(2, [&](const Group& group) {
      ExchangeConfig config = small_config();
      config.layout = layout;
      Exchange exchange(group, config);
      Inputs in;
      in.token_values.fill(0x3F80);  // 1
      const Dispatched got = dispatch_inputs(exchange, in);
      const TensorView& rows = got.experts.rows;
      const TensorView results = exchange.combine_input(got.handle);
      EXPECT_EQ(results.describe(), rows.describe());
      std::memcpy(results.data(), rows.data(), rows.num_bytes());
      Tensor output(DType::kF32, {2, kHidden});
      exchange.combine(got.handle, results, output);
      const float sum = layout == Layout::kCompact ? 1.0f : 2.0f;
      EXPECT_EQ(output.as<float>()[0], sum);
      expect_invalid("not alive", [&] { exchange.combine_input(got.handle); });
    });
  }
}

TEST(ExchangeHandlesTest, HandlesOfAnotherExchangeAreRefused) {
  run_ranks(2, [](const Group& group) {
    std::optional<Exchange> other(std::in_place, group, small_config());
    Exchange exchange(group, small_config());
    const Inputs in;
    const Dispatched theirs = dispatch_inputs(*other, in);
    const Dispatched ours = dispatch_inputs(exchange, in);
    const Tensor rows = zeros_like(ours.experts.rows);
    const Tensor output(DType::kBF16, {2, kHidden});
    expect_invalid("not alive", [&] { exchange.combine(theirs.handle, rows, output); });
    expect_invalid("not alive", [&] { exchange.combine_send(theirs.handle, rows); });
    expect_invalid("not alive", [&] { exchange.release(theirs.handle); });
    expect_invalid("not alive", [&] { exchange.row_origins(theirs.handle); });
    expect_invalid("not alive", [&] { exchange.wire_bytes(theirs.handle); });
    expect_invalid("of another Exchange",
                   [&] { exchange.dispatch_again(theirs.handle, in.tokens()); });
    expect_invalid("of another Exchange", [&] { exchange.reopen(theirs.handle); });
    other.reset();
    expect_invalid("of another Exchange", [&] { exchange.reopen(theirs.handle); });
    exchange.combine(ours.handle, rows, output);
  });
}

TEST(ExchangeHandlesTest, OneHandleTooMany) {
  run_ranks(1, [](const Group& group) {
    ExchangeConfig config = small_config();
    config.max_in_flight = 2;
    Exchange exchange(group, config);
    const Inputs in;
    const DispatchHandle first = dispatch_inputs(exchange, in).handle;
    const DispatchHandle second = exchange.reopen(first);
    const char* words = "2 handles are alive, max_in_flight is 2";
    expect_invalid(words, [&] { exchange.reopen(first); });
    expect_invalid(words, [&] { exchange.dispatch_again(first, in.tokens()); });
    expect_invalid(words, [&] { dispatch_inputs(exchange, in); });
    exchange.release(first);
    exchange.release(exchange.dispatch_again(second, in.tokens()).handle);
    exchange.release(second);
    expect_works(exchange);
  });
}

TEST(ExchangeHandlesTest, KeptRoutingHasItsNumberOfTokens) {
  run_ranks(1, [](const Group& group) {
    Exchange exchange(group, small_config());
    const Inputs in;
    DispatchOptions options;
    options.max_tokens = 2;
    const Dispatched got = dispatch_inputs(exchange, in, options);
    exchange.release(got.handle);
    expect_invalid("tokens has 3 rows, must be 2 as in the earlier dispatch",
                   [&] { exchange.dispatch_again(got.handle, in.tokens(3)); });
    expect_invalid("topk_weights is f32 [1, 2]",
                   [&] { exchange.dispatch_again(got.handle, in.tokens(), in.weights(1)); });
    options.max_tokens = 3;
    expect_invalid("options.max_tokens is 3, must be 2 as in the earlier dispatch", [&] {
      exchange.dispatch_again(got.handle, in.tokens(), {}, Stream::host(), options);
    });
    options.max_tokens = 2;
    exchange.release(
        exchange.dispatch_again(got.handle, in.tokens(), {}, Stream::host(), options).handle);
  });
}

// A handle keeps its routing however many dispatches follow; the memory of released ones is reused.
TEST(ExchangeHandlesTest, KeptHandlesOutliveManyDispatches) {
  run_ranks(2, [](const Group& group) {
    Exchange exchange(group, small_config());
    Inputs in;
    const Dispatched first = dispatch_inputs(exchange, in);
    const std::int64_t num_rows = first.host->num_rows;
    exchange.release(first.handle);
    in.id_values = {-1, -1, -1, 3, 0, 0, 0, 0};
    for (int i = 0; i < 5; ++i) {
      exchange.release(dispatch_inputs(exchange, in).handle);
      const Dispatched again = exchange.dispatch_again(first.handle, in.tokens());
      EXPECT_EQ(again.host->num_rows, num_rows);
      exchange.release(again.handle);
    }
  });
}

// Ids travel once; a reopened handle has dispatched nothing.
TEST(ExchangeHandlesTest, WireBytesOfKeptRouting) {
  run_ranks(2, [](const Group& group) {
    Exchange exchange(group, small_config());
    const Inputs in;  // each token's experts are on one rank: 0 and 1, or 2 and 3
    const std::int64_t row = 2 * kHidden;
    const Dispatched got = dispatch_inputs(exchange, in);
    EXPECT_EQ(exchange.wire_bytes(got.handle).dispatch, row + 2 * 2 * 6);
    EXPECT_EQ(exchange.wire_bytes(got.handle).combine, row);
    exchange.release(got.handle);
    const Dispatched weighted = exchange.dispatch_again(got.handle, in.tokens(), in.weights());
    EXPECT_EQ(exchange.wire_bytes(weighted.handle).dispatch, row + 2 * 2 * 4);
    exchange.release(weighted.handle);
    const Dispatched plain = exchange.dispatch_again(got.handle, in.tokens());
    EXPECT_EQ(exchange.wire_bytes(plain.handle).dispatch, row);
    exchange.release(plain.handle);
    const DispatchHandle reopened = exchange.reopen(got.handle);
    EXPECT_EQ(exchange.wire_bytes(reopened).dispatch, 0);
    EXPECT_EQ(exchange.wire_bytes(reopened).combine, row);
    exchange.release(reopened);
  });
}

}  // namespace
}  // namespace switchyard
