// SPDX-License-Identifier: Apache-2.0
//
// What Exchange refuses of payloads, of bounds of a call, of routing that is used again, and
// of configurations. One rank on one GPU.

#include "core/fail.h"
#include "exchange_rank.h"
#include "gpu.h"
#include "support/errors.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using namespace test;

// Schemes that CPUs support and no kernel exists for.
std::vector<ExchangeConfig> unnamed_schemes() {
  QuantScheme small = schemes::kFp8Block;
  small.block = 64;
  QuantScheme large = schemes::kInt8Block;
  large.block = 1024;
  std::vector<ExchangeConfig> configs;
  for (const QuantScheme& scheme : {small, large}) {
    configs.push_back(fault_config());
    configs.back().scheme = scheme;
    configs.push_back(fault_config());
    configs.back().combine_scheme = scheme;
  }
  configs.push_back(fault_config());  // supported for dispatched rows only
  configs.back().combine_scheme = schemes::kFp8Block;
  configs.back().combine_scheme.scale_format = ScaleFormat::kF32PowerOfTwo;
  return configs;
}

class AgainArgumentsTest : public testing::Test {
 protected:
  void SetUp() override { REQUIRE_GPU(); }

  static void run(const ExchangeConfig& config, const ExchangeOptions& options,
                  const std::function<void(ExchangeRank&)>& body) {
    run_ranks(1, [&](const Group& group) {
      const cuda::DeviceGuard guard(0);
      ExchangeRank rank(group, config, options);
      body(rank);
      rank.finish();
    });
  }
  static Dispatched again(ExchangeRank& rank, const DispatchHandle& earlier,
                          const DispatchOptions& options = {}) {
    return rank.exchange().dispatch_again(earlier, rank.tokens(), {}, rank.stream(), options);
  }
};

TEST_F(AgainArgumentsTest, RoutingThatIsNotKept) {
  run(fault_config(), {}, [](ExchangeRank& rank) {
    const Dispatched got = rank.dispatch();
    rank.combine(got);
    expect_invalid("dispatch_again: the exchange keeps no routing; set",
                   [&] { (void)again(rank, got.handle); });
    expect_invalid("reopen: the exchange keeps no routing",
                   [&] { (void)rank.exchange().reopen(got.handle, rank.stream()); });
  });
}

TEST_F(AgainArgumentsTest, HandlesWhoseRoutingIsGone) {
  run(fault_config(), {.keeps_routing = true}, [](ExchangeRank& rank) {
    Exchange& exchange = rank.exchange();
    expect_invalid("the handle is empty", [&] { (void)again(rank, {}); });
    const DispatchHandle sent =
        exchange.dispatch_send(rank.tokens(), rank.ids(), {}, rank.stream());
    expect_invalid("sent by dispatch and not received", [&] { (void)again(rank, sent); });
    const Dispatched first = exchange.dispatch_receive(sent, rank.stream());
    expect_invalid("1 handles are alive, max_in_flight is 1",
                   [&] { (void)again(rank, first.handle); });
    rank.combine(first);
    const Dispatched second = again(rank, first.handle);
    rank.combine(second);
    exchange.release(exchange.reopen(first.handle, rank.stream()));  // still the same routing
    const Dispatched third = rank.dispatch();
    rank.combine(third);
    expect_invalid("a new dispatch has reused the slot of the handle",
                   [&] { (void)again(rank, second.handle); });
    expect_invalid("a new dispatch has reused the slot of the handle",
                   [&] { (void)exchange.reopen(first.handle, rank.stream()); });
    rank.combine(again(rank, third.handle));
  });
}

TEST_F(AgainArgumentsTest, OtherTokensThanBefore) {
  run(fault_config(), {.keeps_routing = true}, [](ExchangeRank& rank) {
    const Dispatched got = rank.dispatch();
    rank.combine(got);
    const TensorView fewer(rank.tokens().data(), DType::kBF16, {15, 1024}, rank.device());
    const std::size_t launches = rank.num_launches([&] {
      expect_invalid("dispatch_again: tokens has 15 rows, must be 16", [&] {
        (void)rank.exchange().dispatch_again(got.handle, fewer, {}, rank.stream());
      });
      expect_invalid("options.max_tokens is 17, must be from 0 to max_tokens_per_rank, 16",
                     [&] { (void)again(rank, got.handle, {.max_tokens = 17}); });
    });
    EXPECT_EQ(launches, 0u);
    rank.combine(again(rank, got.handle, {.max_tokens = 16}));
  });
}

TEST_F(AgainArgumentsTest, BoundsOfACall) {
  run(fault_config(Layout::kByRank), {}, [](ExchangeRank& rank) {
    const auto dispatch = [&](std::int64_t max_tokens) {
      return rank.exchange().dispatch(rank.tokens(), rank.ids(), {}, rank.stream(),
                                      {.max_tokens = max_tokens});
    };
    expect_invalid("options.max_tokens is -1", [&] { (void)dispatch(-1); });
    expect_invalid("tokens has 16 rows, but options.max_tokens is 15", [&] { (void)dispatch(15); });
    rank.combine(dispatch(16));
  });
}

TEST_F(AgainArgumentsTest, Payloads) {
  ExchangeConfig config = fault_config();
  config.payload_bytes = {32, 64};
  run(config, {}, [](ExchangeRank& rank) {
    const TensorView tokens = rank.tokens();
    const auto payload = [&](std::int64_t rows, std::int64_t bytes) {
      return TensorView(tokens.data(), DType::kU8, {rows, bytes}, tokens.device());
    };
    const auto dispatch = [&](const std::vector<TensorView>& payloads) {
      return rank.exchange().dispatch(tokens, rank.ids(), {}, rank.stream(),
                                      {.payloads = payloads});
    };
    const std::size_t launches = rank.num_launches([&] {
      expect_invalid("0 payloads are given, the configuration has 2", [&] { (void)dispatch({}); });
      expect_invalid("payloads[1] is", [&] { (void)dispatch({payload(16, 32), {}}); });
      expect_invalid("payloads[0] is", [&] { (void)dispatch({payload(16, 31), payload(16, 64)}); });
      expect_invalid("16 rows of 64 bytes", [&] {
        (void)dispatch({payload(16, 32), payload(15, 64)});
      });
    });
    EXPECT_EQ(launches, 0u);
    const Dispatched got = dispatch({payload(16, 32), payload(16, 64)});
    EXPECT_EQ(got.payloads.size(), 2u);
    rank.combine(got);
  });
}

TEST_F(AgainArgumentsTest, ConfigurationsThatAreNotSupported) {
  run_ranks(1, [](const Group& group) {
    const cuda::DeviceGuard guard(0);
    const auto refuse = [&](const ExchangeConfig& config, const char* phrase) {
      expect_error(Errc::kNotSupported, phrase,
                   [&] { const Exchange exchange(group, config, {.device = Device::cuda(0)}); });
    };
    ExchangeConfig back = fault_config();
    back.combine_scheme = schemes::kFp8Token;
    refuse(back, "combine_scheme is fp8_token, must be bf16, f16, f32, or one of");
    for (const ExchangeConfig& unnamed : unnamed_schemes())
      refuse(unnamed, "one of switchyard::schemes");
    ExchangeConfig payload = fault_config();
    payload.payload_bytes = {8, (1 << 24) + 1};
    refuse(payload, "payload_bytes has 16777217, must be at most 16777216");
    ExchangeConfig experts = fault_config();
    experts.num_experts = 16385;
    refuse(experts, "num_experts is 16385, must be at most 16384");
    ExchangeConfig rows = fault_config();
    rows.expert_alignment = 1 << 29;
    refuse(rows, "the receive buffer has 4294967320 rows, must be fewer than 2147483648");
  });
}

TEST_F(AgainArgumentsTest, ACapacityThatIsExceeded) {
  for (const Layout layout : {Layout::kExpanded, Layout::kCompact, Layout::kByRank}) {
    SCOPED_TRACE(name_of(layout));
    ExchangeConfig config = fault_config(layout);
    config.capacity = 3;  // 16 tokens with 2 choices of 8 experts: 4 rows per expert
    expect_error(Errc::kCapacityExceeded, "was sent 4 rows, its capacity is 3", [&] {
      run(config, {}, [](ExchangeRank& rank) {
        (void)rank.dispatch();
        rank.finish();
      });
    });
  }
}

}  // namespace
}  // namespace switchyard
