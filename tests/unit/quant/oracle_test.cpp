// SPDX-License-Identifier: Apache-2.0
//
// The public calls against the oracle, byte for byte: every named scheme, odd sizes, partial
// blocks, and elements that include NaN, infinity and very different magnitudes.

#include <cmath>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "switchyard/quant.h"

#include "core/random.h"
#include "quant/scalar.h"
#include "reference/reference.h"

namespace switchyard {
namespace {

constexpr float kGlobalScale = 448.0f * 6.0f / 4.5f;

const std::vector<QuantScheme>& all_schemes() {
  static const std::vector<QuantScheme> all{
      schemes::kFp8Block,  schemes::kFp8BlockDeepEp, schemes::kFp8Ue8m0,  schemes::kFp8Ue8m0DeepEp,
      schemes::kFp8Token,  schemes::kFp8Tensor,      schemes::kInt8Token, schemes::kInt8Tensor,
      schemes::kInt8Block, schemes::kNvfp4,          schemes::kMxfp4,     schemes::kMxfp6E3M2,
      schemes::kMxfp6E2M3, schemes::kMxfp8};
  return all;
}

// Normal values scaled by 2^-12 to 2^12; some are zeros and, if `has_specials`, NaN or -infinity.
float element(std::uint64_t seed, std::uint64_t i, bool has_specials) {
  const auto normal = static_cast<float>(random_normal(seed, i));
  const std::uint64_t kind = random_bits(seed + 1, i) % 401;
  if (has_specials && kind == 0) return f32_from_bits(0xFFC00001u);
  if (has_specials && kind == 1) return std::ldexp(-1.0f, 200);
  if (kind < 20) return kind % 2 == 0 ? 0.0f : -0.0f;
  return normal * std::ldexp(1.0f, static_cast<int>(i / 48 % 9) * (kind < 200 ? 1 : 3) - 12);
}

struct Case {
  Tensor x;
  reference::Table<float> values;  // what x holds, widened

  Case(DType dtype, std::int64_t num_rows, std::int64_t hidden, bool has_specials)
      : x(dtype, {num_rows, hidden}), values(num_rows, hidden) {
    for (std::int64_t i = 0; i < num_rows * hidden; ++i) {
      const auto at = static_cast<std::uint64_t>(i);
      scalar::store(x.data(), dtype, i,
                    element(static_cast<std::uint64_t>(hidden), at, has_specials));
      values.data[at] = scalar::load(x.data(), dtype, i);
    }
  }
};

bool same_bytes(const TensorView& got, const std::vector<std::uint8_t>& want) {
  return got.num_bytes() == want.size() &&
         (want.empty() || std::memcmp(got.data(), want.data(), want.size()) == 0);
}

// Elements in `dtype`, as a simulated scheme keeps them and dequantization returns them.
std::vector<std::uint8_t> rounded(const reference::Table<float>& values, DType dtype) {
  std::vector<std::uint8_t> bytes(values.data.size() *
                                  static_cast<std::size_t>(bits_of(dtype) / 8));
  for (std::size_t i = 0; i < values.data.size(); ++i) {
    const float value = reference::round_to(dtype, values.data[i]);
    scalar::store(bytes.data(), dtype, static_cast<std::int64_t>(i), value);
  }
  return bytes;
}

void compare(const QuantScheme& scheme, const Case& test) {
  const DType dtype = test.x.dtype();
  const std::int64_t num_rows = test.x.shape(0);
  const std::int64_t hidden = test.x.shape(1);
  const bool is_tensor = scheme.group == ScaleGroup::kTensor;
  const Tensor q(stored_dtype(scheme, dtype), {num_rows, hidden});
  const Tensor scales(scale_dtype(scheme), {is_tensor ? 1 : num_rows, num_scales(scheme, hidden)});
  const Tensor y(dtype, {num_rows, hidden});
  const TensorView global =
      scheme.needs_tensor_scale() ? TensorView::of(&kGlobalScale, {1}) : TensorView{};
  quantize(test.x, scheme, q, scales, global);
  dequantize(q, scales, scheme, y, global);

  const reference::QuantizedRows want = reference::quantize(
      scheme, test.values,
      scheme.needs_tensor_scale() ? std::optional<float>(kGlobalScale) : std::nullopt);
  const std::vector<std::uint8_t> back = rounded(reference::dequantize(scheme, want), dtype);
  EXPECT_TRUE(same_bytes(y, back)) << "dequantized";
  if (scheme.is_simulated()) {
    EXPECT_TRUE(same_bytes(q, back)) << "simulated";
    return;
  }
  EXPECT_TRUE(same_bytes(q, reference::stored_elements(scheme, want).data)) << "elements";
  EXPECT_TRUE(same_bytes(scales, reference::stored_scales(scheme, want).data)) << "scales";
}

TEST(OracleTest, EverySchemeDTypeAndSizeGivesTheBytesOfTheOracle) {
  for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    for (const std::int64_t hidden : {0, 1, 2, 15, 16, 30, 34, 128, 131, 258, 1026}) {
      for (const bool has_specials : {false, true}) {
        const Case test(dtype, 3, hidden, has_specials);
        for (const QuantScheme& scheme : all_schemes()) {
          if (scheme.dtype == DType::kE2M1 && hidden % 2 != 0) continue;
          SCOPED_TRACE(name_of(scheme) + " of " + name_of(dtype) + ", hidden " +
                       std::to_string(hidden) + (has_specials ? ", specials" : ""));
          compare(scheme, test);
          if (HasFailure()) return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace switchyard
