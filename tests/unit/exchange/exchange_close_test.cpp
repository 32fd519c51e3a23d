// SPDX-License-Identifier: Apache-2.0
//
// close(): what it ends, what stays, and that a rank of CPUs needs no other for it.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "switchyard/collectives.h"
#include "switchyard/prepare_finalize.h"

#include "compat/deep_ep/low_latency_buffer.h"
#include "compat/flashinfer/moe_alltoall.h"
#include "unit/exchange/small_exchange.h"

namespace switchyard {
namespace {

using namespace test;

TEST(ExchangeCloseTest, EveryLaterCallIsRefusedByItsName) {
  run_ranks(2, [](const Group& group) {
    ExchangeConfig config = small_config();
    config.layout = Layout::kBatched;
    config.num_topk = 2;
    Exchange exchange(group, config);
    Inputs in;
    in.id_values = {0, 1, 2, 3, 1, 0, 1, 2};
    const Dispatched got = dispatch_inputs(exchange, in);
    const Tensor rows = zeros_like(got.experts.rows);
    const Tensor output(DType::kBF16, {2, kHidden});
    const DispatchHandle& handle = got.handle;
    EXPECT_FALSE(exchange.is_closed());
    exchange.close();
    exchange.close();
    EXPECT_TRUE(exchange.is_closed());
    EXPECT_EQ(exchange.config(), config);
    EXPECT_EQ(exchange.device(), Device::cpu());
    const std::vector<std::pair<const char*, std::function<void()>>> calls{
        {"dispatch", [&] { dispatch_inputs(exchange, in); }},
        {"dispatch_send", [&] { exchange.dispatch_send(in.tokens(), in.ids()); }},
        {"dispatch_again", [&] { exchange.dispatch_again(handle, in.tokens()); }},
        {"dispatch_again_send", [&] { exchange.dispatch_again_send(handle, in.tokens()); }},
        {"dispatch_receive", [&] { exchange.dispatch_receive(handle); }},
        {"places", [&] { exchange.places(handle); }},
        {"reopen", [&] { exchange.reopen(handle); }},
        {"check_output", [&] { exchange.check_output(handle, output); }},
        {"combine", [&] { exchange.combine(handle, rows, output); }},
        {"combine_send", [&] { exchange.combine_send(handle, rows); }},
        {"combine_receive", [&] { exchange.combine_receive(handle, output); }},
        {"release", [&] { exchange.release(handle); }},
        {"row_origins", [&] { exchange.row_origins(handle); }},
        {"write_row_sources", [&] { exchange.write_row_sources(handle, {}); }},
        {"wire_bytes", [&] { exchange.wire_bytes(handle); }},
        {"max_buffer_rows", [&] { exchange.max_buffer_rows(); }},
        {"memory", [&] { exchange.memory(); }},
        {"heap", [&] { exchange.heap(); }},
        {"is_shared_gpu", [&] { exchange.is_shared_gpu(); }},
        {"check", [&] { exchange.check(); }}};
    for (const auto& [name, call] : calls) {
      expect_invalid(std::string(name) + ": the exchange was closed, must be open", call);
    }
  });
}

TEST(ExchangeCloseTest, ReceivedRowsStayUntilDestruction) {
  run_ranks(2, [](const Group& group) {
    Exchange exchange(group, small_config());
    Inputs in;
    in.token_values.fill(0x3F80);
    const Dispatched got = dispatch_inputs(exchange, in);
    exchange.close();
    Exchange moved = std::move(exchange);
    EXPECT_TRUE(moved.is_closed());
    const auto* first = got.experts.rows.as<std::uint16_t>();
    for (std::int64_t i = 0; i < got.host->num_rows * kHidden; ++i) ASSERT_EQ(first[i], 0x3F80);
  });
}

// Rank 1 goes on with what rank 0 sent before it closed; a new exchange works on both.
TEST(ExchangeCloseTest, OnCpusARankWaitsForNobody) {
  run_ranks(2, [](const Group& group) {
    Exchange exchange(group, small_config());
    const Inputs in;
    const DispatchHandle sent = exchange.dispatch_send(in.tokens(), in.ids(), in.weights());
    if (group.rank() == 0) exchange.close();
    group.barrier();
    if (group.rank() == 1) {
      EXPECT_GT(exchange.dispatch_receive(sent).host->num_rows, 0);
      exchange.close(false);
    }
    Exchange next(group, small_config());
    expect_works(next);
  });
}

TEST(ExchangeCloseTest, ClassesOverAnExchangeCloseIt) {
  run_ranks(2, [](const Group& group) {
    PrepareFinalizeConfig config;
    config.num_experts = 4;
    config.num_topk = 2;
    config.hidden = kHidden;
    config.max_tokens_per_rank = 3;
    for (const PrepareKind kind : {PrepareKind::kLowLatency, PrepareKind::kElasticDecode,
                                   PrepareKind::kAllGather, PrepareKind::kLocal}) {
      const auto object = make_prepare_finalize(kind, group, config);
      Inputs in;
      in.id_values = {0, 1, 2, 3, 1, 0, 1, 2};
      const PrepareArguments arguments{in.tokens(), in.ids(), in.weights()};
      const Prepared prepared = object->prepare(arguments);
      object->close();
      object->close();
      EXPECT_TRUE(prepared.experts.rows.has_value());
      expect_invalid("it was closed, must be open", [&] { object->prepare(arguments); });
      expect_invalid("it was closed, must be open", [&] { object->finalize({}); });
      expect_invalid("the exchange was closed", [&] { object->check(); });
    }
    const Inputs in;
    Collectives collectives(group, 3);
    collectives.all_gatherv(in.tokens());
    collectives.close();
    expect_invalid("all_gatherv: the object was closed",
                   [&] { collectives.all_gatherv(in.tokens()); });
    deep_ep::LowLatencyBuffer buffer(group);
    buffer.close();
    expect_invalid("the object was closed",
                   [&] { buffer.low_latency_dispatch(in.tokens(), in.ids(), 3, 4); });
    flashinfer::MoeAlltoAll moe(group, {.max_num_tokens = 3, .top_k = 2, .num_experts = 4});
    const std::vector<TensorView> received = moe.dispatch(in.ids(), {in.tokens()}, 3);
    moe.close();
    EXPECT_EQ(received[0].shape(0), 2);
    expect_invalid("combine: the object was closed", [&] { moe.combine(received[0]); });
  });
}

}  // namespace
}  // namespace switchyard
