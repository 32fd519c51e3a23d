// SPDX-License-Identifier: Apache-2.0
//
// What Dispatched holds in each layout: shapes, and what was dropped; rows that combine takes; and
// the rows of a shared expert against the sum in two steps.

#include <array>
#include <cstring>

#include "quant/bf16.h"
#include "quant/scalar.h"
#include "unit/exchange/small_exchange.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::ElementsAre;

constexpr std::array kLayouts{Layout::kBatched, Layout::kExpanded, Layout::kCompact,
                              Layout::kByRank, Layout::kAllGather};

// instruments/conformance compares all counts with the oracle.
TEST(ExchangeShapesTest, ChoicesThatWereDroppedAreCountedWhereTheyMayBe) {
  for (const Layout layout : kLayouts) {
    for (const Overflow overflow : {Overflow::kError, Overflow::kDrop}) {
      SCOPED_TRACE(name_of(layout));
      run_ranks(2, [&](const Group& group) {
        ExchangeConfig config = small_config();
        config.layout = layout;
        config.overflow = overflow;
        Exchange exchange(group, config);
        EXPECT_EQ(exchange.device(), Device::cpu());
        EXPECT_STREQ(exchange.heap(), "host");
        EXPECT_FALSE(exchange.is_shared_gpu());
        const Inputs in;
        const Dispatched got = dispatch_inputs(exchange, in);
        ASSERT_TRUE(got.host.has_value());
        EXPECT_EQ(got.host->num_dropped, 0);
        EXPECT_EQ(got.total_rows.describe(), "i32 [1]");
        EXPECT_EQ(got.num_dropped.has_value(), overflow == Overflow::kDrop);
        if (overflow == Overflow::kDrop) {
          EXPECT_THAT(elements<std::int32_t>(got.num_dropped), ElementsAre(0));
        }
        exchange.release(got.handle);
      });
    }
  }
}

TEST(ExchangeShapesTest, BatchedRowsAndScalesHaveThreeDimensions) {
  run_ranks(2, [](const Group& group) {
    ExchangeConfig config = small_config();
    config.layout = Layout::kBatched;
    config.scheme = {DType::kE4M3, ScaleGroup::kBlock, 4};
    Exchange exchange(group, config);
    const Inputs in;
    const Dispatched got = dispatch_inputs(exchange, in);
    EXPECT_EQ(got.experts.rows.describe(), "e4m3 [2, 6, 8]");  // C = 2 ranks x 3 tokens
    EXPECT_EQ(got.experts.scales.describe(), "f32 [2, 6, 2]");
    EXPECT_THAT(elements<std::int64_t>(got.experts.first_row), ElementsAre(0, 6));
    EXPECT_EQ(got.topk_weights.describe(), "f32 [12]");
    exchange.release(got.handle);
  });
  run_ranks(1, [](const Group& group) {
    ExchangeConfig config = small_config();
    config.scheme = {DType::kE4M3, ScaleGroup::kBlock, 4};
    Exchange exchange(group, config);
    const Inputs in;
    const Dispatched got = dispatch_inputs(exchange, in);
    EXPECT_EQ(got.experts.rows.describe(), "e4m3 [4, 8]");
    EXPECT_EQ(got.experts.scales.describe(), "f32 [4, 2]");
  });
}

TEST(ExchangeShapesTest, BatchedResultsMayBeFlat) {
  run_ranks(2, [](const Group& group) {
    ExchangeConfig config = small_config();
    config.layout = Layout::kBatched;
    Exchange exchange(group, config);
    Inputs in;
    in.token_values.fill(0x3F80);
    const Tensor outputs[] = {Tensor(DType::kBF16, {2, kHidden}),
                              Tensor(DType::kBF16, {2, kHidden})};
    for (const bool is_flat : {false, true}) {
      const Dispatched got = dispatch_inputs(exchange, in);
      TensorView rows = got.experts.rows;
      if (is_flat) rows = TensorView(rows.data(), DType::kBF16, {12, kHidden});
      for (const TensorView& wrong : {TensorView(rows.data(), DType::kBF16, {2, 5, kHidden}),
                                      TensorView(rows.data(), DType::kBF16, {11, kHidden})}) {
        expect_invalid("rows is bf16 [", [&] { exchange.combine(got.handle, wrong, outputs[0]); });
      }
      exchange.combine(got.handle, rows, outputs[is_flat ? 1 : 0]);
    }
    for (std::int64_t i = 0; i < 2 * kHidden; ++i) {
      ASSERT_EQ(outputs[0].as<std::uint16_t>()[i], 0x4000);
      ASSERT_EQ(outputs[1].as<std::uint16_t>()[i], 0x4000);
    }
  });
}

// The formula of ModularKernel: the sum rounded to the output's dtype, plus the shared row, rounded
// again. Values are chosen so that one rounding alone gives other bits.
void check_shared(const Group& group, Layout layout, Reduce reduce, DType output_dtype) {
  ExchangeConfig config = small_config();
  config.layout = layout;
  config.reduce = reduce;
  config.max_in_flight = 2;
  Exchange exchange(group, config);
  Inputs in;
  for (std::size_t i = 0; i < 2 * kHidden; ++i) {
    in.token_values[i] = bf16_from_f32(1.0f + static_cast<float>(i + 3) / 128.0f);
  }
  in.weight_values = {0.3f, 0.4f, 0.7f, 0.11f};
  const Tensor shared(DType::kBF16, {2, kHidden + 1});
  for (std::int64_t i = 0; i < 2 * (kHidden + 1); ++i) {
    shared.as<std::uint16_t>()[i] = bf16_from_f32(0.37f - static_cast<float>(i) / 50.0f);
  }
  // Rows of the shared expert may lie apart.
  const TensorView strided(shared.data(), DType::kBF16, {2, kHidden}, {kHidden + 1, 1});
  const Tensor bias(DType::kBF16, {2, kHidden});
  for (std::int64_t i = 0; i < 2 * kHidden; ++i) {
    bias.as<std::uint16_t>()[i] = bf16_from_f32(static_cast<float>(i) / 9.0f);
  }
  CombineOptions options;
  options.bias = {bias};
  const Tensor plain(output_dtype, {2, kHidden});
  const Tensor with_shared(output_dtype, {2, kHidden});
  const Tensor in_phases(output_dtype, {2, kHidden});
  const auto dispatch = [&] { return dispatch_inputs(exchange, in); };
  Dispatched got = dispatch();
  exchange.combine(got.handle, got.experts.rows, plain, Stream::host(), options);
  options.shared = strided;
  got = dispatch();
  exchange.combine(got.handle, got.experts.rows, with_shared, Stream::host(), options);
  got = dispatch();
  exchange.combine_send(got.handle, got.experts.rows);
  exchange.combine_receive(got.handle, in_phases, Stream::host(), options);
  const Tensor want(output_dtype, {2, kHidden});
  for (std::int64_t i = 0; i < 2 * kHidden; ++i) {
    const float row = scalar::load(plain.data(), output_dtype, i);
    const float added = scalar::load(shared.data(), DType::kBF16, i + i / kHidden);
    scalar::store(want.data(), output_dtype, i, row + added);
  }
  const std::size_t bytes = want.view().num_bytes();
  EXPECT_EQ(std::memcmp(with_shared.data(), want.data(), bytes), 0) << name_of(output_dtype);
  EXPECT_EQ(std::memcmp(in_phases.data(), want.data(), bytes), 0) << name_of(output_dtype);
  EXPECT_NE(std::memcmp(plain.data(), want.data(), bytes), 0);
}

TEST(ExchangeSharedTest, IsAddedToTheRoundedSumAndRoundedAgain) {
  for (const Layout layout : kLayouts) {
    for (const Reduce reduce : {Reduce::kPerRank, Reduce::kPerExpert}) {
      if (reduce == Reduce::kPerExpert && !is_expert_major(layout)) continue;
      for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
        SCOPED_TRACE(name_of(layout));
        run_ranks(2, [&](const Group& group) { check_shared(group, layout, reduce, dtype); });
      }
    }
  }
}

TEST(ExchangeSharedTest, WrongRowsAreRefused) {
  run_ranks(1, [](const Group& group) {
    Exchange exchange(group, small_config());
    const Inputs in;
    const Dispatched got = dispatch_inputs(exchange, in);
    const Tensor output(DType::kBF16, {2, kHidden});
    const Tensor three(DType::kBF16, {3, kHidden});
    const Tensor wide(DType::kF16, {2, kHidden});
    const TensorView columns(three.data(), DType::kBF16, {2, kHidden}, {1, 2});
    const TensorView null(nullptr, DType::kBF16, {2, kHidden});
    const auto refused = [&](const TensorView& shared, const char* words) {
      CombineOptions options;
      options.shared = shared;
      expect_invalid(words, [&] {
        exchange.combine(got.handle, got.experts.rows, output, Stream::host(), options);
      });
    };
    refused(three, "shared is bf16 [3, 8]");
    refused(wide, "shared is f16 [2, 8], must be bf16 or f32");
    refused(columns, "its rows must be contiguous");
    refused(null, "shared is bf16 [2, 8] at a null pointer");
    exchange.combine(got.handle, got.experts.rows, output);
  });
}

}  // namespace
}  // namespace switchyard
