// SPDX-License-Identifier: Apache-2.0
//
// The wide row quantizers against the scalar definition, bit for bit, on every target.

#include <cmath>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "core/random.h"
#include "quant/rows.h"
#include "quant/scalar.h"
#include "quant/scheme.h"
#include "support/for_each_target.h"

namespace switchyard {
namespace {

constexpr DType kDTypes[] = {DType::kBF16, DType::kF16, DType::kF32};
constexpr std::int64_t kHiddens[] = {0,   1,   2,   7,   17,   30,   32,   127,
                                     128, 129, 255, 256, 1000, 1024, 1070, 7168};

QuantScheme block_scheme(std::int32_t block, ScaleRule rule, ScaleFormat format) {
  return {DType::kE4M3, ScaleGroup::kBlock, block, rule, format};
}

std::vector<QuantScheme> all_schemes() {
  std::vector<QuantScheme> all{schemes::kFp8Token,   schemes::kFp8Tensor, schemes::kInt8Token,
                               schemes::kInt8Tensor, schemes::kInt8Block, schemes::kNvfp4,
                               schemes::kMxfp4,      schemes::kMxfp8,     schemes::kMxfp6E3M2,
                               schemes::kMxfp6E2M3};
  for (const ScaleRule rule : {ScaleRule::kDivide, ScaleRule::kMultiply}) {
    for (const ScaleFormat format :
         {ScaleFormat::kF32, ScaleFormat::kF32PowerOfTwo, ScaleFormat::kE8M0Packed}) {
      all.push_back(block_scheme(128, rule, format));
    }
    for (const std::int32_t block : {1, 32, 100}) {
      all.push_back(block_scheme(block, rule, ScaleFormat::kF32));
    }
  }
  return all;
}

// Kinds of data; each row is stored in the requested dtype.
enum class Data { kNormal, kTiny, kHuge, kZeros, kAnyBits, kWithSpecials };
constexpr Data kData[] = {Data::kNormal, Data::kTiny,    Data::kHuge,
                          Data::kZeros,  Data::kAnyBits, Data::kWithSpecials};

float element(Data data, std::uint64_t i) {
  const auto normal = static_cast<float>(random_normal(3, i));
  const float infinity = f32_from_bits(kF32Infinity);
  switch (data) {
    case Data::kNormal: return normal;
    case Data::kTiny: return normal * std::ldexp(1.0f, -static_cast<int>(i % 140));
    case Data::kHuge: return normal * std::ldexp(1.0f, static_cast<int>(i % 126));
    case Data::kZeros: return i % 3 == 0 ? -0.0f : 0.0f;
    case Data::kAnyBits: return f32_from_bits(static_cast<std::uint32_t>(random_bits(5, i)));
    case Data::kWithSpecials: break;
  }
  const float specials[] = {f32_from_bits(0x7F800001u), f32_from_bits(0xFFC00000u), infinity,
                            -infinity};
  return i % 997 == 131 ? specials[(i / 997) % 4] : normal;
}

// Elements [begin, begin + hidden) of the data, at an address without vector alignment.
class Row {
 public:
  Row(Data data, DType dtype, std::int64_t begin, std::int64_t hidden)
      : bytes_(static_cast<std::size_t>(hidden) * 4 + 4) {
    for (std::int64_t h = 0; h < hidden; ++h) {
      const auto i = static_cast<std::uint64_t>(begin + h);
      if (data == Data::kAnyBits && dtype != DType::kF32) {
        words()[h] = static_cast<std::uint16_t>(random_bits(7, i));
      } else {
        scalar::store(this->data(), dtype, h, element(data, i));
      }
    }
  }
  void* data() { return bytes_.data() + 4; }
  std::uint16_t* words() { return static_cast<std::uint16_t*>(data()); }

 private:
  std::vector<std::byte> bytes_;
};

// Bytes stored in words, so that every element and scale is aligned; one word more than is written.
struct Quantized {
  std::vector<std::uint32_t> q;
  std::vector<std::uint32_t> scales;

  Quantized(const QuantScheme& scheme, DType dtype, std::int64_t hidden)
      : q(row_bytes(scheme, hidden, dtype) / 4 + 2, 0xA5A5A5A5u),
        scales(scale_row_bytes(scheme, hidden) / 4 + 2, 0xDEADBEEFu) {}
  std::uint8_t* codes() { return reinterpret_cast<std::uint8_t*>(q.data()); }
  std::byte* bytes() { return reinterpret_cast<std::byte*>(q.data()); }
  bool operator==(const Quantized&) const = default;
};

bool can_have(const QuantScheme& scheme, std::int64_t hidden) {
  return scheme.dtype != DType::kE2M1 || hidden % 2 == 0;
}

void expect_equal(const QuantScheme& scheme, const void* x, DType dtype, std::int64_t hidden,
                  float tensor_scale = 0.01f) {
  if (!can_have(scheme, hidden)) return;
  Quantized want(scheme, dtype, hidden);
  Quantized got = want;
  scalar::quantize_row(scheme, x, dtype, hidden, want.codes(), want.scales.data(), tensor_scale);
  quantize_row(scheme, x, dtype, hidden, got.bytes(), got.scales.data(), tensor_scale);
  ASSERT_TRUE(got == want) << name_of(scheme) << " of " << name_of(dtype) << ", hidden " << hidden;
}

TEST(WideTest, RowsAreBitEqualForEverySchemeDTypeAndSize) {
  test::for_each_target([] {
    for (const Data data : kData) {
      for (const DType dtype : kDTypes) {
        for (const std::int64_t hidden : kHiddens) {
          Row row(data, dtype, 1000 * hidden, hidden);
          for (const QuantScheme& scheme : all_schemes()) {
            expect_equal(scheme, row.data(), dtype, hidden);
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  });
}

TEST(WideTest, AnyTensorScaleIsBitEqual) {
  const std::uint32_t scales[] = {0x00000000, 0x80000000, 0x00000001, 0x00200000,
                                  0x3F800000, 0xBF800000, 0x44600000, 0x5D800000,
                                  0x7E800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000};
  test::for_each_target([&] {
    for (const Data data : {Data::kNormal, Data::kZeros, Data::kHuge, Data::kWithSpecials}) {
      for (const DType dtype : kDTypes) {
        Row row(data, dtype, 17, 1000);
        for (const std::uint32_t bits : scales) {
          for (const QuantScheme& scheme :
               {schemes::kFp8Tensor, schemes::kInt8Tensor, schemes::kNvfp4}) {
            expect_equal(scheme, row.data(), dtype, 1000, f32_from_bits(bits));
            if (HasFatalFailure()) return;
          }
        }
      }
    }
  });
}

// Every significand of the largest magnitude with every significand and 20 exponents of the others:
// because scaling by powers of two is exact, this covers every block of this dtype.
void try_all_significands(DType dtype, int mantissa_bits, const QuantScheme& scheme) {
  const int count = 1 << mantissa_bits;
  const auto hidden = static_cast<std::int64_t>(20 * count);
  std::vector<std::uint16_t> x(static_cast<std::size_t>(hidden) + 1);
  QuantScheme whole_row = scheme;
  whole_row.block = static_cast<std::int32_t>(hidden) + 1;
  for (int m = 0; m < count; ++m) {
    for (std::int64_t i = 0; i < hidden; ++i) {
      const int exponent = 14 - static_cast<int>(i / count);
      const float sign = i % 2 == 0 ? 1.0f : -1.0f;
      scalar::store(
          x.data(), dtype, i,
          sign * std::ldexp(static_cast<float>(count + i % count), exponent - mantissa_bits));
    }
    scalar::store(x.data(), dtype, hidden,
                  std::ldexp(static_cast<float>(count + m), 15 - mantissa_bits));
    expect_equal(whole_row, x.data(), dtype, hidden + 1);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(WideTest, EverySignificandOfBf16AndScaleDividesExactly) {
  test::for_each_target([] {
    try_all_significands(DType::kBF16, 7, schemes::kFp8Block);
    try_all_significands(DType::kBF16, 7, schemes::kFp8BlockDeepEp);
    try_all_significands(DType::kBF16, 7, schemes::kFp8Token);
    try_all_significands(DType::kBF16, 7, schemes::kInt8Token);
    try_all_significands(DType::kBF16, 7, schemes::kInt8Block);
  });
}

TEST(WideTest, EverySignificandOfF16AndScaleDividesExactly) {
  const auto body = [] { try_all_significands(DType::kF16, 10, schemes::kFp8Block); };
  if (test::is_exhaustive()) {
    test::for_each_target(body);
  } else {
    body();
  }
}

// The reciprocal and one correction give the IEEE quotient; exponents do not matter.
TEST(WideTest, CorrectedReciprocalIsTheQuotient) {
  const std::uint32_t step = test::is_exhaustive() ? 1 : 509;
  for (std::uint32_t mantissa = 0; mantissa < (1u << 23); mantissa += step) {
    const float scale = f32_from_bits(0x3F800000u | mantissa);
    const float r = 1.0f / scale;
    for (int i = 0; i < 1024; ++i) {
      const float x = static_cast<float>(1024 + i);
      const float p = x * r;
      ASSERT_EQ(std::fma(std::fma(-p, scale, x), r, p), x / scale) << x << " " << scale;
    }
  }
}

TEST(WideTest, LargestMagnitudeIsEqualAndIgnoresNaN) {
  test::for_each_target([] {
    for (const Data data : kData) {
      for (const DType dtype : kDTypes) {
        for (const std::int64_t hidden : kHiddens) {
          Row row(data, dtype, 3 * hidden, hidden);
          ASSERT_EQ(bits_from_f32(max_magnitude(row.data(), dtype, hidden)),
                    bits_from_f32(scalar::max_magnitude(row.data(), dtype, 0, hidden)));
        }
      }
    }
    const std::vector<float> only_nan(40, f32_from_bits(kF32NaN));
    ASSERT_EQ(max_magnitude(only_nan.data(), DType::kF32, 40), 0.0f);
  });
}

// Any byte is a code here, and any scale may occur, including NaN and infinity.
TEST(WideTest, RowsDequantizeToElementTimesScale) {
  test::for_each_target([] {
    for (const std::int64_t hidden : kHiddens) {
      for (const QuantScheme& scheme : all_schemes()) {
        if (!can_have(scheme, hidden)) continue;
        Quantized row(scheme, DType::kBF16, hidden);
        std::uint64_t i = 0;
        for (std::uint32_t& word : row.q) word = static_cast<std::uint32_t>(random_bits(9, i++));
        for (std::uint32_t& word : row.scales) {
          word = static_cast<std::uint32_t>(random_bits(11, i++));
        }
        const auto size = static_cast<std::size_t>(hidden);
        std::vector<float> want(size + 1, 9.0f);
        std::vector<float> got(size + 1, 9.0f);
        scalar::dequantize_row(scheme, row.codes(), row.scales.data(), hidden, want.data(), 0.37f);
        dequantize_row(scheme, row.bytes(), row.scales.data(), DType::kBF16, hidden, got.data(),
                       0.37f);
        ASSERT_EQ(std::memcmp(got.data(), want.data(), got.size() * sizeof(float)), 0)
            << name_of(scheme) << " hidden " << hidden;
      }
    }
  });
}

}  // namespace
}  // namespace switchyard
