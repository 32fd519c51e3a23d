// SPDX-License-Identifier: Apache-2.0

#include "switchyard/quantize_batched.h"

#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "quant/scheme.h"
#include "support/errors.h"
#include "tensors.h"

namespace switchyard {
namespace {

using namespace test;

constexpr std::int64_t kL = 4;
constexpr std::int64_t kC = 5;
constexpr std::int64_t kH = 288;  // two blocks of 128 and a partial one

// src/conformance compares every scheme and layout with the oracle, over scales that were zero.
TEST(QuantizeBatchedTest, ScalesBeyondACountAreCleared) {
  const std::vector<std::int32_t> counts{3, 0, 5, 1};
  const float global = 448.0f * 6.0f / 4.0f;
  const Tensor x = normal_tensor(DType::kBF16, {kL, kC, kH});
  for (const QuantScheme& scheme : named_schemes()) {
    const bool is_tensor = scheme.group == ScaleGroup::kTensor;
    if (!is_tensor && !has_row_scales(scheme)) continue;
    const auto make = [&](ScaleLayout layout) {
      return make_batched_scales(scale_dtype(scheme), layout, kL, is_tensor ? 1 : kC,
                                 num_scales(scheme, kH));
    };
    for (const ScaleLayout layout : layouts_of(scheme)) {
      const auto scales_over = [&](int before) {
        const OwnedScales scales = make(layout);
        std::memset(scales.memory.data(), before, scales.memory.view().num_bytes());
        quantize_batched(x, TensorView::of(counts.data(), {kL}), scheme,
                         Tensor(stored_dtype(scheme, DType::kBF16), {kL, kC, kH}), scales.view,
                         Stream::host(),
                         scheme.needs_tensor_scale() ? TensorView::of(&global, {1}) : TensorView{});
        const OwnedScales linear = make(ScaleLayout::kRowMajor);
        relayout_scales(scales.view, linear.view);
        return bytes_of(linear.memory);
      };
      EXPECT_EQ(scales_over(0xAB), scales_over(0)) << name_of(scheme);
    }
  }
}

TEST(QuantizeBatchedTest, WithoutASchemeRowsAreCopiedUpToTheCount) {
  const std::vector<std::int32_t> counts{3, 0, 5, 1};
  const Tensor x = normal_tensor(DType::kBF16, {kL, kC, kH});
  const Tensor q(DType::kBF16, {kL, kC, kH});
  quantize_batched(x, TensorView::of(counts.data(), {kL}), schemes::kNone, q, {});
  for (std::int64_t i = 0; i < kL * kC * kH; ++i) {
    const bool counts_here = i / kH % kC < counts[static_cast<std::size_t>(i / kH / kC)];
    ASSERT_EQ(q.as<std::uint16_t>()[i], counts_here ? x.as<std::uint16_t>()[i] : 0) << i;
  }
}

// An expert's scale is 448 / 448 = 1 or 896 / 448 = 2, whatever lies beyond its count.
TEST(QuantizeBatchedTest, TensorScalesAreOnePerExpert) {
  const std::vector<float> x{448, 1, 7e7f, 7e7f, 896, 2, 4, -6};  // [2, 2, 2]
  const std::vector<std::int32_t> counts{1, 2};
  const Tensor q(DType::kE4M3, {2, 2, 2});
  const Tensor scales(DType::kF32, {2, 1, 1});
  quantize_batched(TensorView::of(x.data(), {2, 2, 2}), TensorView::of(counts.data(), {2}),
                   schemes::kFp8Tensor, q, scales);
  EXPECT_EQ(scales.as<float>()[0], 1.0f);
  EXPECT_EQ(scales.as<float>()[1], 2.0f);
  EXPECT_EQ(bytes_of(q), (std::vector<std::uint8_t>{0x7E, 0x38, 0, 0, 0x7E, 0x38, 0x40, 0xC4}));
  const std::vector<float> given{1.0f, 4.0f};
  quantize_batched(TensorView::of(x.data(), {2, 2, 2}), TensorView::of(counts.data(), {2}),
                   schemes::kFp8Tensor, q, scales, Stream::host(),
                   TensorView::of(given.data(), {2}));
  EXPECT_EQ(scales.as<float>()[1], 4.0f);
  EXPECT_EQ(q.as<std::uint8_t>()[6], 0x38);  // 4 / 4
}

TEST(QuantizeBatchedTest, EmptyBatchesAreFine) {
  const Tensor counts(DType::kI32, {0});
  quantize_batched(Tensor(DType::kBF16, {0, 3, 128}), counts, schemes::kFp8Block,
                   Tensor(DType::kE4M3, {0, 3, 128}), Tensor(DType::kF32, {0, 3, 1}));
  const Tensor two(DType::kI32, {2});
  quantize_batched(Tensor(DType::kBF16, {2, 0, 128}), two, schemes::kFp8Block,
                   Tensor(DType::kE4M3, {2, 0, 128}), Tensor(DType::kF32, {2, 0, 1}));
}

TEST(QuantizeBatchedTest, RefusesWrongTensorsAndWritesNothing) {
  const Tensor x = normal_tensor(DType::kBF16, {2, 3, 128});
  const Tensor q(DType::kE4M3, {2, 3, 128});
  const Tensor scales(DType::kF32, {2, 3, 1});
  scales.as<float>()[0] = 9.0f;
  const QuantScheme& scheme = schemes::kFp8Block;
  const std::vector<std::int32_t> good{3, 1};
  const TensorView counts = TensorView::of(good.data(), {2});
  for (const std::int32_t bad : {-1, 4, std::numeric_limits<std::int32_t>::max()}) {
    const std::vector<std::int32_t> values{3, bad};
    expect_invalid("counts[1] is " + std::to_string(bad) + ", want from 0 to 3 rows", [&] {
      quantize_batched(x, TensorView::of(values.data(), {2}), scheme, q, scales);
    });
  }
  expect_invalid("counts is absent, want contiguous i32 [2]",
                 [&] { quantize_batched(x, {}, scheme, q, scales); });
  expect_invalid("scales is absent", [&] { quantize_batched(x, counts, scheme, q, {}); });
  expect_invalid("scales is f32 [2, 3, 1], want f32 [2, 1, 1]",
                 [&] { quantize_batched(x, counts, schemes::kFp8Tensor, q, scales); });
  expect_invalid("q is f32 [2, 3, 1], want contiguous e4m3 [2, 3, 128]",
                 [&] { quantize_batched(x, counts, scheme, scales, scales); });
  expect_invalid("static_scale is given, want none for fp8_block", [&] {
    quantize_batched(x, counts, scheme, q, scales, Stream::host(), Tensor(DType::kF32, {1}));
  });
  expect_invalid("static_scale is f32 [3], want f32 [1] or [2]", [&] {
    quantize_batched(x, counts, schemes::kFp8Tensor, q, Tensor(DType::kF32, {2, 1, 1}),
                     Stream::host(), Tensor(DType::kF32, {3}));
  });
  expect_invalid("x is bf16 [6, 128], want 3 dimensions", [&] {
    quantize_batched(TensorView(x.data(), DType::kBF16, {6, 128}), counts, scheme, q, scales);
  });
  EXPECT_EQ(scales.as<float>()[0], 9.0f);
  for (const std::uint8_t byte : bytes_of(q)) ASSERT_EQ(byte, 0);
}

}  // namespace
}  // namespace switchyard
