// SPDX-License-Identifier: Apache-2.0
//
// Arguments on which ranks must agree in each call, and capacities: every rank gets the same error,
// which names the rank that differs, and continues with the same exchange.

#include <functional>
#include <string>
#include <vector>

#include "engine/control.h"
#include "unit/exchange/small_exchange.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kNumRanks = 3;
constexpr int kOddRank = 1;

// Every rank's message names the odd rank, either as the peer or as itself.
std::string named(int rank, const std::string& odd, const std::string& others) {
  return rank == kOddRank ? "rank 0 " + others + ", rank 1 " + odd
                          : "rank 1 " + odd + ", rank " + std::to_string(rank) + " " + others;
}

TEST(ExchangeAgreementTest, MaxTokensMustBeAlike) {
  run_ranks(kNumRanks, [](const Group& group) {
    Exchange exchange(group, small_config());
    const Inputs in;
    DispatchOptions options;
    for (int i = 0; i < 3; ++i) {
      options.max_tokens = group.rank() == kOddRank ? 2 : 3;
      expect_invalid(named(group.rank(), group.rank() == kOddRank ? "2" : "passed max_tokens 2",
                           group.rank() == kOddRank ? "passed max_tokens 3" : "3"),
                     [&] { dispatch_inputs(exchange, in, options); });
      options.max_tokens = 2;
      expect_works(exchange, options);
    }
  });
}

TEST(ExchangeAgreementTest, TensorScalesMustBeAlike) {
  run_ranks(kNumRanks, [](const Group& group) {
    ExchangeConfig config = small_config();
    config.scheme = schemes::kFp8Tensor;
    Exchange exchange(group, config);
    const Inputs in;
    const float scale = group.rank() == kOddRank ? 0.25f : 0.5f;
    const float alike = 1.0f;
    DispatchOptions options;
    options.tensor_scale = TensorView::of(&scale, {1});
    expect_invalid(
        named(group.rank(), group.rank() == kOddRank ? "0.25" : "passed tensor_scale 0.25",
              group.rank() == kOddRank ? "passed tensor_scale 0.5" : "0.5"),
        [&] { dispatch_inputs(exchange, in, options); });
    options.tensor_scale = TensorView::of(&alike, {1});
    expect_works(exchange, options);
  });
}

TEST(ExchangeAgreementTest, HandlesMustBeOfTheSameDispatch) {
  run_ranks(kNumRanks, [](const Group& group) {
    ExchangeConfig config = small_config();
    config.max_in_flight = 3;
    Exchange exchange(group, config);
    const Inputs in;
    const Dispatched first = dispatch_inputs(exchange, in);
    const Dispatched second = dispatch_inputs(exchange, in);
    const DispatchHandle mine = group.rank() == kOddRank ? second.handle : first.handle;
    const Error error = error_of([&] { exchange.dispatch_again(mine, in.tokens()); });
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1 "), HasSubstr("call 1"),
                                    HasSubstr("uses the routing of call")))
        << group.rank();
    exchange.release(exchange.dispatch_again(second.handle, in.tokens()).handle);
    exchange.release(first.handle);
    expect_works(exchange);
  });
}

TEST(ExchangeAgreementTest, NewAndKeptRoutingDoNotMix) {
  run_ranks(kNumRanks, [](const Group& group) {
    Exchange exchange(group, small_config());
    const Inputs in;
    const Dispatched first = dispatch_inputs(exchange, in);
    exchange.release(first.handle);
    expect_invalid("every rank must pass the handle of the same dispatch", [&] {
      if (group.rank() == kOddRank) {
        dispatch_inputs(exchange, in);
      } else {
        exchange.dispatch_again(first.handle, in.tokens());
      }
    });
    exchange.release(exchange.dispatch_again(first.handle, in.tokens()).handle);
    expect_works(exchange);
  });
}

// Every rank sends a row to expert 0.
TEST(ExchangeAgreementTest, CapacityExceededOnEveryRank) {
  for (const Layout layout : {Layout::kBatched, Layout::kExpanded, Layout::kCompact,
                              Layout::kByRank, Layout::kAllGather}) {
    run_ranks(kNumRanks, [&](const Group& group) {
      ExchangeConfig config = small_config();
      config.layout = layout;
      config.capacity = 2;
      config.max_in_flight = 2;
      Exchange exchange(group, config);
      const Inputs in;
      // Only rank 0 sends, and its rows fit; this handle stays alive meanwhile.
      const std::int64_t alone = group.rank() == 0 ? 2 : 0;
      const Dispatched before =
          exchange.dispatch(in.tokens(alone), in.ids(alone), in.weights(alone));
      DispatchHandle failed;
      expect_error(Errc::kCapacityExceeded, "expert 0 is sent 3 rows, its capacity is 2", [&] {
        failed = exchange.dispatch_send(in.tokens(), in.ids(), in.weights());
        exchange.dispatch_receive(failed);
      });
      expect_invalid("not alive", [&] { exchange.dispatch_receive(failed); });
      expect_invalid("whose dispatch was received",
                     [&] { exchange.dispatch_again(failed, in.tokens()); });
      const Dispatched after =
          exchange.dispatch(in.tokens(alone), in.ids(alone), in.weights(alone));
      EXPECT_EQ(after.host->num_dropped, 0);
      const Tensor rows = zeros_like(after.experts.rows);
      const Tensor output(DType::kBF16, {alone, kHidden});
      exchange.combine(after.handle, rows, output);
      exchange.combine(before.handle, rows, output);
    });
  }
}

TEST(ExchangeAgreementTest, EveryFieldOfTheConfigurationIsCompared) {
  const auto disagree = [](const std::function<void(ExchangeConfig&)>& change,
                           const std::string& words) {
    expect_invalid(words, [&] {
      run_ranks(2, [&](const Group& group) {
        ExchangeConfig config = small_config();
        config.scheme = schemes::kFp8Block;
        if (group.rank() == 1) change(config);
        const Exchange exchange(group, config);
      });
    });
  };
  disagree([](auto& c) { c.num_experts = 8; }, "rank 1 has num_experts 8, but rank 0 has 4");
  disagree([](auto& c) { c.hidden = 16; }, "rank 1 has hidden 16, but rank 0 has 8");
  disagree([](auto& c) { c.num_topk = 3; }, "rank 1 has num_topk 3, but rank 0 has 2");
  disagree([](auto& c) { c.scheme = schemes::kFp8Token; },
           "rank 1 has scheme fp8_token, but rank 0 has fp8_block");
  disagree([](auto& c) { c.reduce = Reduce::kPerExpert; },
           "rank 1 has reduce per_expert, but rank 0 has per_rank");
  disagree([](auto& c) { c.max_tokens_per_rank = 4; }, "rank 1 has max_tokens_per_rank 4");
  disagree([](auto& c) { c.layout = Layout::kCompact; }, "rank 1 has layout compact");
  disagree([](auto& c) { c.scale_layout = ScaleLayout::kColumnMajor; }, "rank 1 has scale_layout");
  disagree([](auto& c) { c.payload_bytes = {4}; }, "rank 1 has payload_bytes 4");
  disagree([](auto& c) { c.combine_scheme.dtype = DType::kF32; }, "rank 1 has combine_scheme f32");
  disagree([](auto& c) { c.sends_weights = false; }, "rank 1 has sends_weights false");
  disagree([](auto& c) { c.expert_alignment = 2; }, "rank 1 has expert_alignment 2");
  disagree([](auto& c) { c.worst_case_rows = true; }, "rank 1 has worst_case_rows true");
  disagree([](auto& c) { c.zero_padding = true; }, "rank 1 has zero_padding true");
  disagree([](auto& c) { c.capacity = 9; }, "rank 1 has capacity 9");
  disagree([](auto& c) { c.overflow = Overflow::kDrop; }, "rank 1 has overflow drop");
  disagree([](auto& c) { c.max_in_flight = 2; }, "rank 1 has max_in_flight 2");
}

// Both calls are named on every rank, and the group goes on.
TEST(ExchangeAgreementTest, RanksInDifferentCallsAreNamed) {
  for (const int odd : {0, kOddRank}) {
    run_ranks(kNumRanks, [&](const Group& group) {
      const std::string split = "split (colors)";
      const std::string exchange = "set-up of an exchange (device)";
      const Error error = error_of([&] {
        if (group.rank() == odd) {
          (void)group.split(0);
        } else {
          Exchange made(group, small_config());
        }
      });
      EXPECT_EQ(error.code(), Errc::kInvalidArgument);
      EXPECT_THAT(error.what(), HasSubstr("rank 1 is in " + (odd == 0 ? exchange : split) +
                                          ", but rank 0 in " + (odd == 0 ? split : exchange)));
      const Group whole = group.split(0);
      EXPECT_EQ(whole.size(), kNumRanks);
      Exchange made(whole, small_config());
      expect_works(made);
    });
  }
}

TEST(ExchangeAgreementTest, RankThatFailedAloneMayTryAgain) {
  run_ranks(kNumRanks, [&](const Group& group) {
    if (group.rank() == kOddRank) {
      ExchangeConfig wrong = small_config();
      wrong.hidden = -1;
      expect_invalid("hidden", [&] { Exchange made(group, wrong); });
    }
    Exchange made(group, small_config());
    expect_works(made);
  });
}

// A rank that is a step behind the others.
TEST(ExchangeAgreementTest, RanksAtDifferentStepsAreNamed) {
  run_ranks(kNumRanks, [&](const Group& group) {
    const char* const step = group.rank() == kOddRank ? "device" : "configuration";
    expect_invalid(
        "exchange: rank 1 is in set-up of an exchange (device), but rank 0 in set-up of an "
        "exchange (configuration)",
        [&] {
          (void)group.control().all_gather_text({Phase::kExchange, step}, "text\n");
        });
    const auto texts = group.control().all_gather_text({Phase::kExchange, "same"}, "\n");
    EXPECT_EQ(texts, std::vector<std::string>(kNumRanks, "\n"));
  });
}

// One that waits in a call which says nothing to the others runs into its timeout.
TEST(ExchangeAgreementTest, BarrierInsteadOfAnotherCallIsATimeoutThatNamesBoth) {
  const Error error = error_of([] {
    run_ranks(
        2,
        [](const Group& group) {
          if (group.rank() == 0) {
            group.barrier();
          } else {
            (void)group.split(0);
          }
        },
        300);
  });
  EXPECT_EQ(error.code(), Errc::kTimeout);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("barrier"), HasSubstr("split"), HasSubstr("call 1")));
}

// Found before anything asks for a GPU.
TEST(ExchangeAgreementTest, AllRanksAreOnCpusOrAllOnGpus) {
  expect_invalid("rank 1 has device cuda, but rank 0 has cpu", [] {
    run_ranks(2, [](const Group& group) {
      ExchangeOptions options;
      if (group.rank() == 1) options.device = Device::cuda(0);
      const Exchange exchange(group, small_config(), options);
    });
  });
}

}  // namespace
}  // namespace switchyard
