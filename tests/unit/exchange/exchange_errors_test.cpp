// SPDX-License-Identifier: Apache-2.0
//
// Every argument error: its code, its text, and that the exchange stays usable.

#include <utility>

#include <gmock/gmock.h>

#include "switchyard/exchange.h"

#include "unit/exchange/small_exchange.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::HasSubstr;

TEST(ExchangeErrorsTest, DispatchArgumentsAreNamedAndNothingIsLost) {
  run_ranks(1, [](const Group& group) {
    Exchange exchange(group, small_config());
    Inputs in;
    const auto refused = [&](const char* words, const TensorView& tokens, const TensorView& ids,
                             const TensorView& weights) {
      expect_invalid(words, [&] { exchange.dispatch(tokens, ids, weights); });
    };
    refused("tokens has 4 rows, but max_tokens_per_rank is 3", in.tokens(4), in.ids(4),
            in.weights(4));
    refused("tokens is i32 [2, 8], must be bf16, f16 or f32 [T, 8]",
            TensorView(in.token_values.data(), DType::kI32, {2, kHidden}), in.ids(), in.weights());
    refused("tokens is bf16 [2, 7]", TensorView(in.token_values.data(), DType::kBF16, {2, 7}),
            in.ids(), in.weights());
    refused("tokens is absent", {}, in.ids(), in.weights());
    refused("its rows must be contiguous and must not overlap",
            TensorView(in.token_values.data(), DType::kBF16, {2, kHidden}, {1, 2}), in.ids(),
            in.weights());
    const auto* odd = reinterpret_cast<const std::byte*>(in.token_values.data()) + 1;
    refused("must be a multiple of 2", TensorView(odd, DType::kBF16, {2, kHidden}), in.ids(),
            in.weights());
    refused("topk_ids is i32 [3, 2], must be i32 or i64 [2, 2]", in.tokens(), in.ids(3),
            in.weights());
    refused("topk_ids is f32 [2, 2]", in.tokens(), in.weights(), in.weights());
    refused("topk_weights is i32 [2, 2]", in.tokens(), in.ids(), in.ids());
    in.id_values[3] = 4;
    refused("topk_ids[1, 1] is 4, must be -1 or an expert from 0 to 3", in.tokens(), in.ids(),
            in.weights());
    in.id_values[3] = -2;
    refused("topk_ids[1, 1] is -2", in.tokens(), in.ids(), in.weights());
    in.id_values[3] = 3;

    const Dispatched got = dispatch_inputs(exchange, in);
    EXPECT_EQ(got.host->num_rows, 4);
  });
}

TEST(ExchangeErrorsTest, ExpertsPerRankMustAddUp) {
  run_ranks(2, [](const Group& group) {
    ExchangeConfig config = small_config();
    const auto refused = [&](std::vector<std::int32_t> counts, const char* words) {
      config.experts_per_rank = std::move(counts);
      expect_invalid(words, [&] { Exchange(group, config); });
    };
    refused({4}, "experts_per_rank has 1 numbers, must be one for each of 2 ranks, or none");
    refused({5, -1}, "experts_per_rank is -1 for rank 1, must be 0 or more");
    refused({3, 2}, "experts_per_rank adds up to 5, must be num_experts, 4");
    const bool is_first = group.rank() == 0;
    refused(is_first ? std::vector<std::int32_t>{4, 0} : std::vector<std::int32_t>{0, 4},
            "experts_per_rank");
    config.layout = Layout::kAllGather;
    config.slices_experts = true;
    refused({4, 0}, "experts_per_rank is given with slices_experts");
  });
}

// Rank 0 only runs attention, rank 1 only experts: each sends nothing of what it does not have.
TEST(ExchangeErrorsTest, ARankMayHaveNoExpertsAndAnotherNoTokens) {
  for (const Layout layout : {Layout::kBatched, Layout::kExpanded, Layout::kCompact,
                              Layout::kByRank, Layout::kAllGather}) {
    SCOPED_TRACE(name_of(layout));
    run_ranks(2, [&](const Group& group) {
      ExchangeConfig config = small_config();
      config.layout = layout;
      config.experts_per_rank = {0, 4};
      Exchange exchange(group, config);
      Inputs in;
      in.token_values.fill(0x3F80);  // 1
      const std::int64_t num_tokens = group.rank() == 0 ? 2 : 0;
      in.id_values = {0, 1, 2, 3, 0, 0, 0, 0};
      const Dispatched got =
          exchange.dispatch(in.tokens(num_tokens), in.ids(num_tokens), in.weights(num_tokens));
      EXPECT_EQ(got.experts.num_rows.num_elements(), group.rank() == 0 ? 0 : 4);
      const Tensor rows = zeros_like(got.experts.rows);
      std::fill_n(rows.as<std::uint16_t>(), rows.view().num_elements(), 0x3F80);
      const Tensor output(DType::kBF16, {num_tokens, kHidden});
      exchange.combine(got.handle, rows, output);
      const std::uint16_t sum = is_expert_major(layout) ? 0x4000 : 0x3F80;  // of 2 rows, or of 1
      for (std::int64_t i = 0; i < num_tokens * kHidden; ++i) {
        ASSERT_EQ(output.as<std::uint16_t>()[i], sum) << i;
      }
    });
  }
}

TEST(ExchangeErrorsTest, AnExchangeThatWasMovedFromSaysSo) {
  run_ranks(1, [](const Group& group) {
    Exchange first(group, small_config());
    Exchange second = std::move(first);
    Inputs in;
    // NOLINTBEGIN(bugprone-use-after-move): the point of the test
    expect_invalid("Exchange: it was moved from", [&] { dispatch_inputs(first, in); });
    expect_invalid("Exchange: it was moved from", [&] { (void)first.config(); });
    expect_invalid("Exchange: it was moved from", [&] { first.check(); });
    // NOLINTEND(bugprone-use-after-move)
    expect_works(second);
  });
}

// Rows of 128 KiB: each rank wants more than 10 TiB, which is more than a host has.
TEST(ExchangeErrorsTest, MoreMemoryThanTheHostHasIsRefusedOnEveryRank) {
  expect_error(Errc::kOutOfMemory, "but this host has ", [] {
    run_ranks(2, [](const Group& group) {
      ExchangeConfig config = small_config();
      config.hidden = 1 << 16;
      config.max_tokens_per_rank = 100'000'000;
      const Error own = error_of([&] { const Exchange exchange(group, config); });
      EXPECT_EQ(own.code(), Errc::kOutOfMemory);
      EXPECT_THAT(own.what(), HasSubstr("memory of 2 ranks (this one "));
      throw own;
    });
  });
}

TEST(ExchangeErrorsTest, BatchedLayoutRefusesAnExpertTwice) {
  run_ranks(1, [](const Group& group) {
    ExchangeConfig config = small_config();
    config.layout = Layout::kBatched;
    Exchange exchange(group, config);
    Inputs in;
    in.id_values[3] = in.id_values[2];
    expect_invalid("token 1 names expert 2 twice", [&] { dispatch_inputs(exchange, in); });
    in.id_values = {-1, -1, -1, -1};
    EXPECT_EQ(dispatch_inputs(exchange, in).host->num_rows, 0);
  });
}

TEST(ExchangeErrorsTest, CombineArgumentsAndHandlesAreChecked) {
  run_ranks(1, [](const Group& group) {
    Exchange exchange(group, small_config());
    const Inputs in;
    const Dispatched got = dispatch_inputs(exchange, in);
    const Tensor rows(DType::kBF16, {4, kHidden});
    const Tensor output(DType::kBF16, {2, kHidden});

    expect_invalid("the handle is not alive",
                   [&] { exchange.combine_send(DispatchHandle(), rows); });
    expect_invalid("was received from dispatch last, must have been sent by combine",
                   [&] { exchange.combine_receive(got.handle, output); });
    expect_invalid("rows is bf16 [2, 8], must be bf16, f16 or f32 [4, 8]",
                   [&] { exchange.combine_send(got.handle, output); });
    expect_invalid("1 handles are alive, max_in_flight is 1",
                   [&] { dispatch_inputs(exchange, in); });
    exchange.combine_send(got.handle, rows);
    expect_invalid("output is bf16 [4, 8], must be bf16, f16 or f32 [2, 8]",
                   [&] { exchange.combine_receive(got.handle, rows); });
    CombineOptions options;
    options.topk_weights = in.weights();
    expect_invalid("topk_weights is given, but reduce is per_rank",
                   [&] { exchange.combine_receive(got.handle, output, Stream::host(), options); });
    options = {};
    options.bias = {rows.view()};
    expect_invalid("bias[0] is bf16 [4, 8]",
                   [&] { exchange.combine_receive(got.handle, output, Stream::host(), options); });
    exchange.combine_receive(got.handle, output);
    expect_invalid("the handle is not alive",
                   [&] { exchange.combine_receive(got.handle, output); });
  });
}

// The blocking combine refuses before it sends, so the same handle still works.
TEST(ExchangeErrorsTest, ARefusedCombineSendsNothing) {
  run_ranks(2, [](const Group& group) {
    Exchange exchange(group, small_config());
    const Inputs in;
    const Dispatched got = dispatch_inputs(exchange, in);
    const Tensor wrong(DType::kBF16, {5, kHidden});
    const Tensor output(DType::kBF16, {2, kHidden});
    expect_invalid("output is bf16 [5, 8]",
                   [&] { exchange.combine(got.handle, got.experts.rows, wrong); });
    exchange.combine(got.handle, got.experts.rows, output);
  });
}

TEST(ExchangeErrorsTest, WeightsThatCannotTravelAreRefused) {
  run_ranks(1, [](const Group& group) {
    ExchangeConfig config = small_config();
    config.sends_weights = false;
    Exchange exchange(group, config);
    const Inputs in;
    expect_invalid("sends_weights is false", [&] { dispatch_inputs(exchange, in); });
    EXPECT_EQ(exchange.dispatch(in.tokens(), in.ids()).host->num_rows, 4);
  });
}

TEST(ExchangeErrorsTest, NullPointersAreRefused) {
  run_ranks(1, [](const Group& group) {
    Exchange exchange(group, small_config());
    const Inputs in;
    const TensorView null(nullptr, DType::kBF16, {2, kHidden});
    expect_invalid("at a null pointer", [&] { exchange.dispatch(null, in.ids(), in.weights()); });
  });
}

// After an abort every later call ends with its error, even one whose data has arrived.
TEST(ExchangeErrorsTest, AbortEndsLaterCalls) {
  run_ranks(1, [](const Group& group) {
    Exchange exchange(group, small_config());
    const Inputs in;
    const DispatchHandle handle = exchange.dispatch_send(in.tokens(), in.ids(), in.weights());
    group.abort("the test says so");
    expect_error(Errc::kAborted, "the test says so", [&] { exchange.dispatch_receive(handle); });
  });
}

TEST(ExchangeErrorsTest, ReleaseGivesTheSlotBack) {
  run_ranks(2, [](const Group& group) {
    Exchange exchange(group, small_config());
    const Inputs in;
    for (int i = 0; i < 5; ++i) {
      exchange.release(dispatch_inputs(exchange, in).handle);
    }
  });
}

TEST(ExchangeErrorsTest, ImpossibleConfigurationsAreRefused) {
  run_ranks(1, [](const Group& group) {
    const auto refuse = [&](auto&& change, const char* words, Errc code = Errc::kInvalidArgument) {
      ExchangeConfig config = small_config();
      change(config);
      expect_error(code, words, [&] { const Exchange exchange(group, config); });
    };
    refuse([](auto& c) { c.num_experts = 0; }, "num_experts is 0, must be from 1 to 65535");
    refuse([](auto& c) { c.num_topk = 65; }, "num_topk is 65, must be from 1 to 64");
    refuse([](auto& c) { c.hidden = 0; }, "hidden is 0");
    refuse([](auto& c) { c.max_tokens_per_rank = -1; }, "max_tokens_per_rank is -1");
    refuse([](auto& c) { c.max_in_flight = 0; }, "max_in_flight is 0");
    refuse([](auto& c) { c.layout = static_cast<Layout>(5); }, "layout is 5");
    refuse([](auto& c) { c.capacity = -1; }, "capacity is -1");
    refuse([](auto& c) { c.payload_bytes = {4, 0}; }, "payload_bytes is 0");
    refuse([](auto& c) { c.scheme.dtype = DType::kI32; }, "i32 without scales");
    refuse([](auto& c) { c.scale_layout = ScaleLayout::kColumnMajor; }, "has no scales");
    refuse([](auto& c) { c.combine_scheme = schemes::kFp8Tensor; }, "combine_scheme is fp8_tensor",
           Errc::kNotSupported);
    refuse(
        [](auto& c) {
          c.layout = Layout::kCompact;
          c.reduce = Reduce::kPerExpert;
        },
        "reduce is per_expert for layout compact");
    refuse(
        [](auto& c) {
          c.layout = Layout::kCompact;
          c.zero_padding = true;
        },
        "only expanded has alignment gaps");
    refuse([](auto& c) { c.reduce = static_cast<Reduce>(9); }, "reduce is 9");
    refuse(
        [](auto& c) {
          c.layout = Layout::kBatched;
          c.expert_alignment = 8;
        },
        "expert_alignment is 8, must be 1 for layout batched");
  });
}

// When a rank stops calling, the others' wait ends with an error that says who, where and when.
TEST(ExchangeErrorsTest, ARankThatDoesNotCallIsNamed) {
  const Error error = error_of([] {
    run_ranks(
        2,
        [](const Group& group) {
          Exchange exchange(group, small_config());
          const Inputs in;
          if (group.rank() == 1) return;
          dispatch_inputs(exchange, in);
        },
        300);
  });
  EXPECT_THAT(error.code(), ::testing::AnyOf(Errc::kTimeout, Errc::kPeerLost));
  EXPECT_THAT(error.what(), HasSubstr("dispatch"));
  EXPECT_THAT(error.what(), HasSubstr("rank 1"));
  EXPECT_THAT(error.what(), HasSubstr("call 1"));
}

}  // namespace
}  // namespace switchyard
