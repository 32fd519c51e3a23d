// SPDX-License-Identifier: Apache-2.0

#include <limits>
#include <vector>

#include <gmock/gmock.h>

#include "switchyard/error.h"
#include "switchyard/router.h"

#include "conformance/random_batch.h"
#include "quant/bf16.h"
#include "quant/f16.h"
#include "reference/reference.h"
#include "support/for_each_target.h"

namespace switchyard {
namespace {

using reference::Table;

// Converts `values`, which `dtype` can represent, to a tensor of that type.
Tensor tensor_of(DType dtype, const Table<float>& values) {
  Tensor tensor(dtype, {values.rows, values.cols});
  for (std::size_t i = 0; i < values.data.size(); ++i) {
    switch (dtype) {
      case DType::kBF16: tensor.as<std::uint16_t>()[i] = bf16_from_f32(values.data[i]); break;
      case DType::kF16: tensor.as<std::uint16_t>()[i] = f16_from_f32(values.data[i]); break;
      default: tensor.as<float>()[i] = values.data[i];
    }
  }
  return tensor;
}

Table<float> run(const TensorView& hidden, const TensorView& gate) {
  Table<float> logits(hidden.shape(0), gate.shape(0), 99.0f);
  router_logits(hidden, gate, TensorView::of(logits.data.data(), {logits.rows, logits.cols}));
  return logits;
}

Table<float> random_values(DType dtype, std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
  Table<float> values(rows, cols);
  std::uint64_t counter = 0;
  for (float& value : values.data) {
    value = reference::round_to(dtype, static_cast<float>(random_normal(seed, counter++)));
  }
  return values;
}

TEST(RouterLogitsTest, SameBitsAsTheOracleOnEveryTarget) {
  struct Case {
    std::int64_t num_tokens, num_experts, hidden;
  };
  // Sizes around tiles of 4 tokens, groups of 64, blocks of 32 experts and slices of 128 elements.
  const Case cases[] = {{1, 1, 1},    {0, 5, 7},    {3, 0, 7},     {2, 3, 0},     {5, 31, 127},
                        {4, 32, 128}, {7, 33, 129}, {66, 64, 300}, {129, 97, 77}, {3, 300, 515}};
  const DType dtypes[] = {DType::kBF16, DType::kF16, DType::kF32};
  std::uint64_t seed = 0;
  for (const Case& c : cases) {
    for (const DType dtype : dtypes) {
      const DType gate_dtype = dtypes[++seed % 3];
      const Table<float> hidden = random_values(dtype, c.num_tokens, c.hidden, seed);
      const Table<float> gate = random_values(gate_dtype, c.num_experts, c.hidden, seed + 1000);
      const std::vector<std::uint32_t> want =
          conformance::bits_of_table(reference::router_logits(hidden, gate));
      test::for_each_target([&] {
        const Table<float> got = run(tensor_of(dtype, hidden), tensor_of(gate_dtype, gate));
        ASSERT_EQ(conformance::bits_of_table(got), want)
            << c.num_tokens << " x " << c.num_experts << " x " << c.hidden;
      });
    }
  }
}

TEST(RouterLogitsTest, RowsOfHiddenMayBeApart) {
  const Table<float> wide = random_values(DType::kF32, 6, 40, 3);
  const Table<float> gate = random_values(DType::kF32, 5, 17, 4);
  Table<float> hidden(6, 17);
  for (std::int64_t t = 0; t < 6; ++t) {
    for (std::int64_t h = 0; h < 17; ++h) hidden(t, h) = wide(t, h);
  }
  const TensorView strided(wide.data.data(), DType::kF32, {6, 17}, {40, 1});
  EXPECT_EQ(conformance::bits_of_table(run(strided, TensorView::of(gate.data.data(), {5, 17}))),
            conformance::bits_of_table(reference::router_logits(hidden, gate)));
}

TEST(RouterLogitsTest, NanIsCanonicalAndInfinityStays) {
  const float inf = std::numeric_limits<float>::infinity();
  const Table<float> hidden(1, 2, std::vector<float>{inf, 1.0f});
  const Table<float> gate(3, 2, std::vector<float>{1, 0, -1, 0, 0, 1});
  const Table<float> got = run(tensor_of(DType::kF32, hidden), tensor_of(DType::kF32, gate));
  EXPECT_THAT(conformance::bits_of_table(got),
              ::testing::ElementsAre(0x7F800000u, 0xFF800000u, 0x7FC00000u));
}

TEST(RouterLogitsTest, WrongArgumentsAreNamedAndNothingIsWritten) {
  const Tensor hidden(DType::kBF16, {4, 8});
  const Tensor gate(DType::kBF16, {3, 8});
  Tensor logits(DType::kF32, {4, 3});
  logits.as<float>()[0] = 7.0f;
  const auto message = [&](const TensorView& h, const TensorView& g, const TensorView& l) {
    try {
      router_logits(h, g, l);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kInvalidArgument);
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(message(hidden, Tensor(DType::kBF16, {3, 9}), logits),
              HasSubstr("gate is bf16 [3, 9], must be bf16, f16 or f32 [3, 8]"));
  EXPECT_THAT(message(hidden, gate, Tensor(DType::kBF16, {4, 3})),
              HasSubstr("logits is bf16 [4, 3], must be f32 [4, 3]"));
  EXPECT_THAT(message(Tensor(DType::kI32, {4, 8}), gate, logits),
              HasSubstr("hidden is i32 [4, 8]"));
  EXPECT_THAT(message({}, gate, logits), HasSubstr("hidden is absent"));
  EXPECT_THAT(message(hidden, {}, logits), HasSubstr("gate is absent"));
  EXPECT_THAT(message(TensorView(nullptr, DType::kBF16, {4, 8}), gate, logits),
              HasSubstr("router_logits: hidden"));
  EXPECT_EQ(logits.as<float>()[0], 7.0f);
}

}  // namespace
}  // namespace switchyard
