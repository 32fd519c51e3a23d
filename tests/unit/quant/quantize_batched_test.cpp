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

// instruments/conformance compares every scheme and layout with the oracle, over scales that were
// zero.
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

// e4m3 0x38, 0x40 and 0xC4 are 1, 2 and -3. All rows are taken; one scale serves an expert or all.
TEST(DequantizeBatchedTest, EachExpertHasItsScales) {
  const std::vector<std::uint8_t> codes{0x38, 0x40, 0xC4, 0x38, 0x38, 0x38, 0x40, 0x40};
  const TensorView q(codes.data(), DType::kE4M3, {2, 2, 2});
  const Tensor y(DType::kF32, {2, 2, 2});
  const auto values = [&] { return std::vector<float>(y.as<float>(), y.as<float>() + 8); };
  const std::vector<float> scales{1, 2, 3, 4};
  dequantize(q, TensorView::of(scales.data(), {2, 2, 1}), schemes::kFp8Token, y);
  EXPECT_EQ(values(), (std::vector<float>{1, 2, -6, 2, 3, 3, 8, 8}));
  dequantize(q, TensorView(scales.data(), DType::kF32, {2, 2, 1}, {1, 2, 4}), schemes::kFp8Token,
             y);
  EXPECT_EQ(values(), (std::vector<float>{1, 2, -9, 3, 2, 2, 8, 8}));
  dequantize(q, TensorView::of(scales.data() + 1, {2, 1, 1}), schemes::kFp8Tensor, y);
  EXPECT_EQ(values(), (std::vector<float>{2, 4, -6, 2, 3, 3, 6, 6}));
  dequantize(q, TensorView::of(scales.data() + 3, {1}), schemes::kFp8Tensor, y);
  EXPECT_EQ(values(), (std::vector<float>{4, 8, -12, 4, 4, 4, 8, 8}));
}

// The same as one call per expert, in every scheme and layout.
TEST(DequantizeBatchedTest, ABatchIsItsExperts) {
  const std::vector<std::int32_t> counts(kL, kC);
  const std::vector<float> global{700.0f, 500.0f, 300.0f, 100.0f};
  const Tensor x = normal_tensor(DType::kF32, {kL, kC, kH});
  for (const QuantScheme& scheme : named_schemes()) {
    const bool is_tensor = scheme.group == ScaleGroup::kTensor;
    const bool has_scales = is_tensor || has_row_scales(scheme);
    const std::int64_t rows = is_tensor ? 1 : kC;
    const std::int64_t width = num_scales(scheme, kH);
    const TensorView given =
        scheme.needs_tensor_scale() ? TensorView::of(global.data(), {kL}) : TensorView{};
    for (const ScaleLayout layout : layouts_of(scheme)) {
      SCOPED_TRACE(name_of(scheme) + " layout " + std::to_string(static_cast<int>(layout)));
      const Tensor q(stored_dtype(scheme, DType::kF32), {kL, kC, kH});
      const OwnedScales scales =
          has_scales ? make_batched_scales(scale_dtype(scheme), layout, kL, rows, width)
                     : OwnedScales{};
      quantize_batched(x, TensorView::of(counts.data(), {kL}), scheme, q, scales.view,
                       Stream::host(), given);
      const Tensor y(DType::kBF16, {kL, kC, kH});
      dequantize(q, scales.view, scheme, y, Stream::host(), given);
      const OwnedScales linear =
          has_scales
              ? make_batched_scales(scale_dtype(scheme), ScaleLayout::kRowMajor, kL, rows, width)
              : OwnedScales{};
      if (has_scales) relayout_scales(scales.view, linear.view);
      const std::size_t q_bytes = row_bytes(scheme, kH, DType::kF32) * kC;
      const std::size_t scale_bytes = scale_row_bytes(scheme, kH) * static_cast<std::size_t>(rows);
      const Tensor want(DType::kBF16, {kC, kH});
      for (std::size_t e = 0; e < kL; ++e) {
        const TensorView q_e(q.as<std::byte>() + e * q_bytes, q.dtype(), {kC, kH});
        TensorView scales_e;
        if (has_scales) {
          std::byte* const at = linear.memory.as<std::byte>() + e * scale_bytes;
          scales_e = is_tensor ? TensorView(at, DType::kF32, {1})
                               : TensorView(at, scale_dtype(scheme), {kC, width});
        }
        dequantize(q_e, scales_e, scheme, want, Stream::host(),
                   given.has_value() ? TensorView::of(global.data() + e, {1}) : TensorView{});
        const std::size_t bytes = want.view().num_bytes();
        ASSERT_EQ(bytes_of(y.as<std::byte>() + e * bytes, bytes), bytes_of(want)) << e;
      }
    }
  }
}

TEST(DequantizeBatchedTest, RefusesWrongTensorsAndWritesNothing) {
  const Errc code = Errc::kInvalidArgument;
  const Tensor q(DType::kE2M1, {2, 3, 16});
  const Tensor scales(DType::kE4M3, {2, 3, 1});
  const Tensor y(DType::kF32, {2, 3, 16});
  y.as<float>()[0] = 9.0f;
  const std::vector<float> global{1.0f, -1.0f};
  const auto call = [&](const TensorView& of, const TensorView& to, const TensorView& scale) {
    dequantize(q, of, schemes::kNvfp4, to, Stream::host(), scale);
  };
  const TensorView one = TensorView::of(global.data(), {1});
  expect_error(code, "tensor_scale is -1, must be a positive number",
               [&] { call(scales, y, TensorView::of(global.data(), {2})); });
  expect_error(code, "tensor_scale is absent, must be f32 [1] or [2]",
               [&] { call(scales, y, {}); });
  expect_error(code, "scales is e4m3 [2, 3], must be e4m3 [2, 3, 1]", [&] {
    call(Tensor(DType::kE4M3, {2, 3}), y, one);
  });
  expect_error(code, "q is e2m1 [2, 3, 16], must be contiguous e2m1 [2, 3, 8]", [&] {
    call(scales, Tensor(DType::kF32, {2, 3, 8}), one);
  });
  expect_error(code, "y is f32 [2, 3, 16] with strides", [&] {
    call(scales, TensorView(y.data(), DType::kF32, {2, 3, 16}, {48, 1, 3}), one);
  });
  EXPECT_EQ(y.as<float>()[0], 9.0f);
  dequantize(Tensor(DType::kE4M3, {0, 3, 128}), Tensor(DType::kF32, {0, 3, 1}), schemes::kFp8Block,
             Tensor(DType::kF32, {0, 3, 128}));
  dequantize(Tensor(DType::kE4M3, {2, 0, 128}), Tensor(DType::kF32, {2, 0, 1}), schemes::kFp8Block,
             Tensor(DType::kF32, {2, 0, 128}));
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
    expect_invalid("counts[1] is " + std::to_string(bad) + ", must be from 0 to 3 rows", [&] {
      quantize_batched(x, TensorView::of(values.data(), {2}), scheme, q, scales);
    });
  }
  expect_invalid("counts is absent, must be contiguous i32 [2]",
                 [&] { quantize_batched(x, {}, scheme, q, scales); });
  expect_invalid("scales is absent", [&] { quantize_batched(x, counts, scheme, q, {}); });
  expect_invalid("scales is f32 [2, 3, 1], must be f32 [2, 1, 1]",
                 [&] { quantize_batched(x, counts, schemes::kFp8Tensor, q, scales); });
  expect_invalid("q is f32 [2, 3, 1], must be contiguous e4m3 [2, 3, 128]",
                 [&] { quantize_batched(x, counts, scheme, scales, scales); });
  expect_invalid("static_scale is given, must be absent for fp8_block", [&] {
    quantize_batched(x, counts, scheme, q, scales, Stream::host(), Tensor(DType::kF32, {1}));
  });
  expect_invalid("static_scale is f32 [3], must be f32 [1] or [2]", [&] {
    quantize_batched(x, counts, schemes::kFp8Tensor, q, Tensor(DType::kF32, {2, 1, 1}),
                     Stream::host(), Tensor(DType::kF32, {3}));
  });
  expect_invalid("x is bf16 [6, 128], must be 3 dimensions", [&] {
    quantize_batched(TensorView(x.data(), DType::kBF16, {6, 128}), counts, scheme, q, scales);
  });
  EXPECT_EQ(scales.as<float>()[0], 9.0f);
  for (const std::uint8_t byte : bytes_of(q)) ASSERT_EQ(byte, 0);
}

}  // namespace
}  // namespace switchyard
