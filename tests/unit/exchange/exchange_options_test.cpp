// SPDX-License-Identifier: Apache-2.0
//
// Options of dispatch and combine: shapes, dtypes, what is required or forbidden, hostile sizes.

#include <limits>
#include <string>
#include <vector>

#include "unit/exchange/small_exchange.h"

namespace switchyard {
namespace {

using namespace test;

constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kInt = std::numeric_limits<std::int32_t>::max();

TEST(ExchangeOptionsTest, PayloadsAreChecked) {
  run_ranks(1, [](const Group& group) {
    ExchangeConfig config = small_config();
    config.payload_bytes = {3};
    Exchange exchange(group, config);
    const Inputs in;
    const std::vector<std::uint8_t> bytes(64, 1);
    const auto refused = [&](std::vector<TensorView> payloads, const char* words) {
      DispatchOptions options;
      options.payloads = std::move(payloads);
      expect_invalid(words, [&] { dispatch_inputs(exchange, in, options); });
    };
    const TensorView good = TensorView::of(bytes.data(), {2, 3});
    refused({}, "0 payloads are given, the configuration has 1");
    refused({good, good}, "2 payloads are given, the configuration has 1");
    refused({TensorView()}, "payloads[0] is absent, must be contiguous, 2 rows of 3 bytes");
    refused({TensorView::of(bytes.data(), {3, 3})}, "payloads[0] is u8 [3, 3]");
    refused({TensorView::of(bytes.data(), {2, 4})}, "payloads[0] is u8 [2, 4]");
    refused({TensorView::of(bytes.data(), {2})}, "payloads[0] is u8 [2]");
    refused({TensorView(bytes.data(), DType::kU8, {2, 3}, {4, 1})}, "with strides [4, 1]");
    // Seven bytes are not two rows of three, although 7 / 2 is 3.
    refused({TensorView(bytes.data(), DType::kE2M1, {2, 7})}, "payloads[0] is e2m1 [2, 7]");
    refused({TensorView::of<std::uint8_t>(nullptr, {2, 3})},
            "payload is u8 [2, 3] at a null pointer");
    DispatchOptions options;
    options.payloads = {good};
    const Dispatched got = dispatch_inputs(exchange, in, options);
    EXPECT_EQ(got.payloads.front().shape(0), 4);
  });
}

// 1 + 2^-10 is no bf16.
TEST(ExchangeOptionsTest, RowsAreNotRoundedUnasked) {
  run_ranks(1, [](const Group& group) {
    const Inputs in;
    ExchangeConfig two = small_config();
    two.max_in_flight = 2;
    Exchange plain(group, two);
    const Dispatched got = dispatch_inputs(plain, in);
    const Tensor output(DType::kF32, {2, kHidden});
    for (const DType dtype : {DType::kF16, DType::kF32}) {
      const Tensor wide(dtype, {2, kHidden});
      const Tensor rows(dtype, {got.experts.rows.shape(0), kHidden});
      const std::string name(name_of(dtype));
      expect_invalid("tokens is " + name +
                         " [2, 8], must be bf16, as which rows travel with scheme "
                         "none; set scheme to " +
                         name,
                     [&] { plain.dispatch(wide, in.ids(), in.weights()); });
      expect_invalid("with combine_scheme none; set combine_scheme to " + name,
                     [&] { plain.combine(got.handle, rows, output); });
      DispatchOptions routing_only;
      routing_only.routing_only = true;  // of the tokens only the shape counts
      ExchangeConfig config = small_config();
      config.combine_scheme.dtype = dtype;
      Exchange chosen(group, config);
      chosen.release(
          chosen.dispatch(wide, in.ids(), in.weights(), Stream::host(), routing_only).handle);
    }
    plain.combine(got.handle, got.experts.rows, output);

    ExchangeConfig config = small_config();
    config.scheme.dtype = config.combine_scheme.dtype = DType::kF32;
    Exchange wide(group, config);
    const std::vector<float> tokens(2 * kHidden, 1.0f + 0x1p-10f);
    const Dispatched rows =
        wide.dispatch(TensorView::of(tokens.data(), {2, kHidden}), in.ids(), in.weights());
    wide.combine(rows.handle, rows.experts.rows, output);
    EXPECT_EQ(*output.as<float>(), 2.0f * tokens.front());
    expect_works(wide);  // bf16 fits into f32
  });
}

TEST(ExchangeOptionsTest, ScalesBelongToQuantizedTokens) {
  run_ranks(1, [](const Group& group) {
    ExchangeConfig config = small_config();
    config.scheme = schemes::kFp8Token;
    Exchange exchange(group, config);
    const Inputs in;
    const std::vector<float> values(8, 1.0f);
    const TensorView codes(in.token_values.data(), DType::kE4M3, {2, kHidden});
    const auto refused = [&](const TensorView& tokens, const TensorView& scales,
                             const char* words) {
      DispatchOptions options;
      options.scales = scales;
      expect_invalid(words, [&] {
        exchange.dispatch(tokens, in.ids(), in.weights(), Stream::host(), options);
      });
    };
    refused(codes, {}, "tokens are e4m3 already, options.scales is absent, must be f32 [2, 1]");
    refused(codes, TensorView::of(values.data(), {2}), "options.scales is f32 [2]");
    refused(codes, TensorView::of(values.data(), {3, 1}), "options.scales is f32 [3, 1]");
    refused(codes, TensorView(values.data(), DType::kI32, {2, 1}), "options.scales is i32 [2, 1]");
    refused(codes, TensorView::of<float>(nullptr, {2, 1}),
            "scales is f32 [2, 1] at a null pointer");
    refused(in.tokens(), TensorView::of(values.data(), {2, 1}), "must be absent for tokens");
    refused(TensorView(in.token_values.data(), DType::kI8, {2, kHidden}), {}, "tokens is i8");
    DispatchOptions options;
    options.scales = TensorView::of(values.data(), {2, 1});
    exchange.release(
        exchange.dispatch(codes, in.ids(), in.weights(), Stream::host(), options).handle);
    expect_works(exchange);
  });
}

TEST(ExchangeOptionsTest, ATensorScaleIsNeeded) {
  run_ranks(1, [](const Group& group) {
    ExchangeConfig config = small_config();
    config.scheme = schemes::kFp8Tensor;
    Exchange exchange(group, config);
    const Inputs in;
    const std::vector<float> values(2, 1.0f);
    const auto refused = [&](const TensorView& scale, const char* words) {
      DispatchOptions options;
      options.tensor_scale = scale;
      expect_invalid(words, [&] { dispatch_inputs(exchange, in, options); });
    };
    refused({}, "tensor_scale is absent, must be f32 [1] for fp8_tensor");
    refused(TensorView::of(values.data(), {2}), "tensor_scale is f32 [2]");
    refused(TensorView(values.data(), DType::kBF16, {1}), "tensor_scale is bf16 [1]");
    refused(TensorView::of<float>(nullptr, {1}), "tensor_scale is f32 [1] at a null pointer");
    DispatchOptions options;
    options.tensor_scale = TensorView::of(values.data(), {1});
    expect_works(exchange, options);
  });
}

TEST(ExchangeOptionsTest, MaxTokensIsBounded) {
  run_ranks(1, [](const Group& group) {
    Exchange exchange(group, small_config());
    const Inputs in;
    DispatchOptions options;
    const auto refused = [&](std::int64_t max_tokens, const char* words) {
      options.max_tokens = max_tokens;
      expect_invalid(words, [&] { dispatch_inputs(exchange, in, options); });
    };
    refused(4, "options.max_tokens is 4, must be from 0 to max_tokens_per_rank, 3");
    refused(-1, "options.max_tokens is -1");
    refused(kHuge, "options.max_tokens is 9223372036854775807");
    refused(1, "tokens has 2 rows, but options.max_tokens is 1");
    options.max_tokens = 0;
    expect_works(exchange, options);
  });
}

TEST(ExchangeOptionsTest, WeightsTravelBack) {
  run_ranks(2, [](const Group& group) {
    Exchange exchange(group, small_config());
    const Inputs in;
    const Dispatched got = dispatch_inputs(exchange, in);
    ASSERT_EQ(got.host->num_rows, 4);
    const std::vector<float> values(16, 2.0f);
    const Tensor output(DType::kBF16, {2, kHidden});
    const Tensor returned(DType::kF32, {2, 2});
    const TensorView row_weights = TensorView::of(values.data(), {4});
    CombineOptions options;
    options.returned_weights = TensorView::of(values.data(), {1, 2});
    const auto combine = [&](const TensorView& weights) {
      options.row_weights = weights;
      exchange.combine(got.handle, got.experts.rows, output, Stream::host(), options);
    };
    expect_invalid("returned_weights is f32 [1, 2]", [&] { combine(row_weights); });
    options.returned_weights = returned;
    expect_invalid("no row_weights are given", [&] { combine({}); });
    expect_invalid("row_weights is f32 [5], must be f32 [4, 1]",
                   [&] { combine(TensorView::of(values.data(), {5})); });
    expect_invalid("row_weights is bf16 [4]",
                   [&] { combine(TensorView(values.data(), DType::kBF16, {4})); });
    expect_invalid("row_weights is f32 [4] at a null pointer",
                   [&] { combine(TensorView::of<float>(nullptr, {4})); });
    combine(row_weights);
    EXPECT_EQ(returned.as<float>()[3], 2.0f);
  });
}

// A rank that sends no row weights is named where they are needed; the combine still ends.
TEST(ExchangeOptionsTest, ARankWithoutRowWeightsIsNamed) {
  run_ranks(2, [](const Group& group) {
    Exchange exchange(group, small_config());
    const Inputs in;
    const Dispatched got = dispatch_inputs(exchange, in);
    const std::vector<float> values(4, 2.0f);
    const Tensor output(DType::kBF16, {2, kHidden});
    const Tensor returned(DType::kF32, {2, 2});
    const TensorView weights = TensorView::of(values.data(), {4});
    CombineOptions options;
    if (group.rank() != 1) options.row_weights = weights;
    exchange.combine_send(got.handle, got.experts.rows, Stream::host(), options);
    options.returned_weights = returned;
    expect_invalid("rank 1 passed no row_weights to combine_send",
                   [&] { exchange.combine_receive(got.handle, output, Stream::host(), options); });
    expect_works(exchange);
  });
}

TEST(ExchangeOptionsTest, WithoutRoutingThereAreNoIdsAndNoWeights) {
  run_ranks(2, [](const Group& group) {
    ExchangeConfig config = small_config();
    config.layout = Layout::kAllGather;
    config.num_topk = config.num_experts = 0;
    Exchange exchange(group, config);
    const Inputs in;
    expect_invalid("topk_ids is i32 [2, 2], must be absent: num_topk is 0",
                   [&] { exchange.dispatch(in.tokens(), in.ids()); });
    expect_invalid("topk_weights is f32 [2, 2]",
                   [&] { exchange.dispatch(in.tokens(), {}, in.weights()); });
    const Dispatched got = exchange.dispatch(in.tokens(), {});
    EXPECT_EQ(got.host->num_rows, 4);
    EXPECT_FALSE(got.topk_ids.has_value());
    EXPECT_FALSE(got.topk_weights.has_value());
    const Tensor output(DType::kBF16, {2, kHidden});
    const Tensor returned(DType::kF32, {2, 0});
    CombineOptions options;
    options.row_weights = returned;
    options.returned_weights = returned;
    expect_invalid("weights do not travel", [&] {
      exchange.combine(got.handle, got.experts.rows, output, Stream::host(), options);
    });
    exchange.combine(got.handle, got.experts.rows, output);
  });
}

TEST(ExchangeOptionsTest, HostileSizesAreRefused) {
  const auto refused = [](auto&& change, const char* words, int num_ranks = 2) {
    ExchangeConfig config = small_config();
    change(config);
    expect_invalid(words, [&] { exchange_memory(config, num_ranks, 0); });
  };

  refused([](auto& c) { c.hidden = kHuge; }, "hidden is 9223372036854775807");
  refused([](auto& c) { c.hidden = kInt + 1; }, "hidden is 2147483648");
  refused([](auto& c) { c.max_tokens_per_rank = kHuge; }, "max_tokens_per_rank is 9223372036854");
  refused([](auto& c) { c.max_tokens_per_rank = kInt / 4 + 1; }, "max_tokens_per_rank is");
  refused([](auto& c) { c.capacity = kHuge; }, "capacity is 9223372036854775807");
  refused([](auto& c) { c.expert_alignment = kHuge; }, "expert_alignment is 92233720368547758");
  refused([](auto& c) { c.expert_alignment = 0; }, "expert_alignment is 0");
  refused([](auto& c) { c.payload_bytes = {kHuge}; }, "payload_bytes is 9223372036854775807");
  refused([](auto& c) { c.payload_bytes = {-1}; }, "payload_bytes is -1");
  refused([](auto& c) { c.num_topk = -1; }, "num_topk is -1");
  refused([](auto& c) { c.num_experts = -1; }, "num_experts is -1");
  refused([](auto& c) { c.max_in_flight = 65; }, "max_in_flight is 65");
  refused([](auto& c) { c.num_topk = 0; }, "num_topk is 0");
  refused(
      [](auto& c) {
        c.layout = Layout::kAllGather;
        c.num_topk = 0;
      },
      "num_experts without num_topk is 4");
  // Every field is valid, but the sizes they imply are not.
  refused(
      [](auto& c) {
        c.hidden = kInt;
        c.max_tokens_per_rank = kInt / 4;
        c.scheme.dtype = DType::kF32;
        c.payload_bytes.assign(64, kInt);
      },
      "overflows 64 bits");
  refused(
      [](auto& c) {
        c.layout = Layout::kBatched;
        c.num_experts = 65535;
        c.capacity = kInt;
        c.hidden = kInt;
        c.scheme = {DType::kE4M3, ScaleGroup::kBlock, 1};
      },
      "overflows 64 bits");
  refused([](auto& c) { c.max_tokens_per_rank = 1; }, "max_tokens_per_rank is 1",
          std::numeric_limits<int>::max());
  ExchangeConfig none = small_config();
  none.max_tokens_per_rank = 0;
  EXPECT_GT(exchange_memory(none, std::numeric_limits<int>::max(), 0).window_bytes, 0u);
  expect_invalid("rank 0 of 0", [&] { exchange_memory(none, 0, 0); });
  expect_invalid("rank 2 of 2", [&] { exchange_memory(none, 2, 2); });
  expect_invalid("rank -1 of 2", [&] { exchange_memory(none, 2, -1); });
}

}  // namespace
}  // namespace switchyard
