// SPDX-License-Identifier: Apache-2.0

#include "measure/bench_oracle.h"

#include <cstring>

#include <gtest/gtest.h>

#include "quant/rows.h"
#include "support/ranks.h"

namespace switchyard::measure {
namespace {

BenchShape shape_of(Layout layout, Reduce reduce, const char* scheme) {
  BenchShape shape;
  shape.workload = {"odd", 144, 7, 3, 8};  // a partial block of 16; ranks with 3, 2 and 2 experts
  shape.routing = RoutingPattern::parse("uniform", 7, 3);
  shape.num_ranks = 3;
  shape.num_tokens = 5;
  shape.layout = layout;
  shape.reduce = reduce;
  shape.scheme = *scheme_from_name(scheme);
  return shape;
}

// What one rank received in iteration 4, copied so that the test can corrupt it.
struct Seen {
  std::vector<std::byte> rows;
  std::vector<std::byte> scales;
  std::vector<std::int32_t> num_rows;
  TensorView rows_view;
  TensorView scales_view;
  Tensor output;
};

constexpr std::int64_t kIteration = 4;

TensorView keep(std::vector<std::byte>& memory, const TensorView& view) {
  if (!view.has_value()) return {};
  const auto* data = view.as<std::byte>();
  memory.assign(data, data + view.num_bytes());
  std::vector<std::int64_t> sizes;
  for (int d = 0; d < view.num_dims(); ++d) sizes.push_back(view.shape(d));
  return TensorView(memory.data(), view.dtype(), sizes);
}

void exchange_once(const Group& group, const BenchShape& shape, const BenchOracle& oracle,
                   Seen& seen) {
  Exchange exchange(group, shape.exchange_config());
  BenchBatch batch(shape, group.rank());
  batch.make(kIteration);
  const Dispatched got = exchange.dispatch(batch.tokens(), batch.topk_ids(), batch.topk_weights(),
                                           Stream::host(), batch.dispatch_options());
  seen.rows_view = keep(seen.rows, got.experts.rows);
  seen.scales_view = keep(seen.scales, got.experts.scales);
  const TensorView& num_rows = got.experts.num_rows;
  seen.num_rows.assign(num_rows.as<std::int32_t>(),
                       num_rows.as<std::int32_t>() + num_rows.num_elements());
  seen.output = Tensor(DType::kBF16, {shape.num_tokens, shape.workload.hidden});
  std::memset(seen.output.data(), 0xFF, seen.output.view().num_bytes());
  const std::int64_t num_buffer_rows = got.experts.rows.num_elements() / shape.workload.hidden;
  exchange.combine(got.handle, oracle.results(num_buffer_rows), seen.output);
}

std::int64_t wrong_received(const BenchOracle& oracle, const Seen& seen) {
  return oracle.count_wrong_received(seen.rows_view, seen.scales_view, seen.num_rows);
}

// What quantized returns lose is seen.
void shape_without_returns_differs(BenchShape shape, int rank, const Seen& seen) {
  shape.returned = schemes::kNone;
  const BenchOracle other(shape, kIteration, rank);
  EXPECT_GT(other.count_wrong_output(seen.output), 0) << name_of(shape.layout);
}

TEST(BenchOracleTest, AgreesWithTheExchangeInEveryLayoutAndScheme) {
  for (const Layout layout :
       {Layout::kBatched, Layout::kExpanded, Layout::kCompact, Layout::kByRank}) {
    for (const Reduce reduce : {Reduce::kPerRank, Reduce::kPerExpert}) {
      if (reduce == Reduce::kPerExpert && !is_expert_major(layout)) continue;
      for (const char* scheme : {"none", "fp8_block", "fp8_ue8m0", "nvfp4", "int8_tensor"}) {
        const BenchShape shape = shape_of(layout, reduce, scheme);
        test::run_ranks(3, [&](const Group& group) {
          const BenchOracle oracle(shape, kIteration, group.rank());
          Seen seen;
          exchange_once(group, shape, oracle, seen);
          EXPECT_EQ(wrong_received(oracle, seen), 0) << name_of(layout) << " " << scheme;
          EXPECT_EQ(oracle.count_wrong_output(seen.output), 0) << name_of(layout) << " " << scheme;
        });
      }
    }
  }
}

TEST(BenchOracleTest, AgreesWithTheExchangeOnCodesAndQuantizedReturns) {
  const Reduce reduces[] = {Reduce::kPerRank, Reduce::kPerExpert, Reduce::kPerHost};
  for (const char* scheme : {"fp8_block", "fp8_ue8m0_deepep", "nvfp4", "int8_tensor", "mxfp8"}) {
    for (const Reduce reduce : reduces) {
      for (const char* returned : {"fp8_block", "int8_token", "mxfp4"}) {
        for (const Layout layout : {Layout::kBatched, Layout::kCompact}) {
          if (reduce == Reduce::kPerExpert && !is_expert_major(layout)) continue;
          BenchShape shape = shape_of(layout, reduce, scheme);
          shape.gives_codes = true;
          shape.returned = *scheme_from_name(returned);
          test::run_ranks(3, [&](const Group& group) {
            const BenchOracle oracle(shape, kIteration, group.rank());
            Seen seen;
            exchange_once(group, shape, oracle, seen);
            EXPECT_EQ(wrong_received(oracle, seen), 0) << scheme << " " << returned;
            EXPECT_EQ(oracle.count_wrong_output(seen.output), 0) << scheme << " " << returned;
            shape_without_returns_differs(shape, group.rank(), seen);
          });
        }
      }
    }
  }
}

// Every element counts by itself, wherever it is.
TEST(BenchOracleTest, CountsWhatIsWrong) {
  const BenchShape shape = shape_of(Layout::kExpanded, Reduce::kPerRank, "fp8_block");
  test::run_ranks(3, [&](const Group& group) {
    const BenchOracle oracle(shape, kIteration, group.rank());
    Seen seen;
    exchange_once(group, shape, oracle, seen);
    seen.rows.front() ^= std::byte{1};
    seen.rows.back() ^= std::byte{0x80};
    EXPECT_EQ(wrong_received(oracle, seen), 2);
    seen.scales.back() ^= std::byte{1};
    EXPECT_EQ(wrong_received(oracle, seen), 3);
    ++seen.num_rows[0];
    EXPECT_EQ(wrong_received(oracle, seen), 4);
    auto* output = seen.output.as<std::uint16_t>();
    output[0] ^= 1;
    output[3 * 144 + 7] ^= 0x8000;
    EXPECT_EQ(oracle.count_wrong_output(seen.output), 2);
    EXPECT_EQ(oracle.count_wrong_output(seen.output, 3), 1);
  });
}

// Rows, weights and ids of one iteration differ from those of another.
TEST(BenchOracleTest, AnotherIterationIsWrong) {
  const BenchShape shape = shape_of(Layout::kBatched, Reduce::kPerExpert, "none");
  test::run_ranks(3, [&](const Group& group) {
    const BenchOracle oracle(shape, kIteration, group.rank());
    Seen seen;
    exchange_once(group, shape, oracle, seen);
    const BenchOracle other(shape, kIteration + 1, group.rank());
    EXPECT_GT(wrong_received(other, seen), 0);
    EXPECT_GT(other.count_wrong_output(seen.output), 5 * 144 / 2);
  });
}

TEST(BenchBatchTest, CodesAreTheSchemesOfTheSameTokens) {
  BenchShape shape = shape_of(Layout::kExpanded, Reduce::kPerRank, "nvfp4");
  shape.gives_codes = true;
  BenchBatch batch(shape, 2);
  batch.make(5);
  const TokenValues values(144, 2);
  std::vector<std::uint16_t> row(144);
  std::vector<std::byte> codes(72);
  std::vector<std::byte> scales(9);
  const TensorView given = batch.dispatch_options().scales;
  EXPECT_EQ(batch.tokens().dtype(), DType::kE2M1);
  EXPECT_EQ(given.shape(1), 9);
  for (std::int64_t t = 0; t < shape.num_tokens; ++t) {
    values.copy_row(first_row_of(5) + t, row.data());
    quantize_row(shape.scheme, row.data(), DType::kBF16, 144, codes.data(), scales.data(),
                 tensor_scale_of(shape.scheme));
    EXPECT_EQ(std::memcmp(batch.tokens().as<std::byte>() + t * 72, codes.data(), 72), 0);
    EXPECT_EQ(std::memcmp(given.as<std::byte>() + t * 9, scales.data(), 9), 0);
  }
}

TEST(BenchBatchTest, RowsMoveThroughALargerBuffer) {
  const BenchShape shape = shape_of(Layout::kExpanded, Reduce::kPerRank, "none");
  BenchBatch batch(shape, 1);
  const TokenValues values(144, 1);
  std::vector<std::uint16_t> row(144);
  for (const std::int64_t iteration : {0, 1, 1'000'003}) {
    batch.make(iteration);
    for (std::int64_t t = 0; t < shape.num_tokens; ++t) {
      values.copy_row(first_row_of(iteration) + t, row.data());
      EXPECT_EQ(std::memcmp(row.data(), batch.tokens().as<std::uint16_t>() + t * 144, 288), 0);
    }
  }
  for (const float weight : topk_weights_of(shape, 3, 2)) {
    EXPECT_GE(weight, 0.0625f);
    EXPECT_LE(weight, 1.0f);
  }
}

}  // namespace
}  // namespace switchyard::measure
