// SPDX-License-Identifier: Apache-2.0
//
// simd_simulate.cpp: vectorized mxfp6 rows, whose elements are rounded to what the format and the
// scale of their block of 32 can represent, and keep their dtype.
//
// y + M - M, with M = 1.5 * 2^(23 - mantissa bits) times the power of two of y (at least that of
// the smallest normal value), is y rounded to the format, subnormals included, with its sign and +0
// for zero. The scale follows from the block, so no magnitude of y rounds above the largest value.
// The product with the scale is exact or overflows as in the definition, and narrowing drops only
// zeros. Chunks with NaN or infinity use the scalar definition.

#include <algorithm>
#include <array>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/simd_simulate.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "quant/block_maxima-inl.h"
#include "quant/simd.h"

HWY_BEFORE_NAMESPACE();
namespace switchyard::simd {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET != HWY_SCALAR

constexpr std::int64_t kBlock = 32;
constexpr std::size_t kMaxLanes = 64;  // written or read past the last block but never used

struct E2M3 {
  static constexpr int kMantissaBits = 3;
  static constexpr std::int32_t kMaxExponent = 2;
  static constexpr float kMinNormal = 1.0f;
};

struct E3M2 {
  static constexpr int kMantissaBits = 2;
  static constexpr std::int32_t kMaxExponent = 4;
  static constexpr float kMinNormal = 0.25f;
};

struct Blocks {
  alignas(64) std::array<float, kChunk / kBlock + kMaxLanes> factors;  // 1 / scale
  alignas(64) std::array<float, kChunk / kBlock + kMaxLanes> scales;   // times kUnit
};

// The reverse of a source's load: 16-bit elements are the upper halves of f32 values (bf16), or of
// values scaled by 2^-112, which corrects the exponent bias and is exact for subnormals (f16).
template <typename Source>
struct Narrowed;

template <>
struct Narrowed<Bf16> {
  static constexpr float kUnit = 1.0f;
  static HWY_INLINE void store(VecF32 low, VecF32 high, std::uint16_t* y) {
    const VecU32 low_half = hn::ShiftRight<16>(hn::BitCast(kU32, low));
    hn::StoreU(hn::BitCast(kU16, hn::Or(low_half, hn::BitCast(kU32, high))), kU16, y);
  }
};

template <>
struct Narrowed<F16> {
  static constexpr float kUnit = 0x1p-112f;
  static HWY_INLINE void store(VecF32 low, VecF32 high, std::uint16_t* y) {
    Narrowed<Bf16>::store(with_sign(low), with_sign(high), y);
  }

 private:
  // The exponent moves up by three bits, and the sign returns to the top.
  static HWY_INLINE VecF32 with_sign(VecF32 x) {
    const VecU32 bits = hn::BitCast(kU32, x);
    const VecU32 magnitude = hn::ShiftLeft<3>(hn::AndNot(sign_bits(), bits));
    return hn::BitCast(kF32, hn::Or(magnitude, hn::And(bits, sign_bits())));
  }
};

template <>
struct Narrowed<F32> {
  static constexpr float kUnit = 1.0f;
  static HWY_INLINE void store(VecF32 low, VecF32 high, float* y) {
    hn::StoreInterleaved2(low, high, kF32, y);
  }
};

// mx_exponent and mx_rule of scale_rules.h for many blocks; false if an element is NaN or infinite.
template <typename Source, typename Format>
HWY_INLINE bool make_scales(const Maxima<Source>& maxima, Blocks& blocks) {
  const VecU32 half_ulp = hn::Set(kU32, 1u << (22 - Format::kMantissaBits));
  const VecI32 max_exponent = hn::Set(kI32, Format::kMaxExponent);
  VecI32 largest = hn::Zero(kI32);
  for (std::size_t b = 0; b < kChunk / kBlock; b += hn::Lanes(kU32)) {
    const VecU32 bits = load_bits(maxima.data() + b);
    largest = hn::Max(largest, hn::BitCast(kI32, bits));
    const VecU32 rounded = hn::Add(hn::BitCast(kU32, Source::widen(bits)), half_ulp);
    const VecI32 exponent = hn::BitCast(kI32, hn::ShiftRight<23>(rounded));
    const VecI32 e = hn::Sub(hn::Max(exponent, max_exponent), max_exponent);
    const VecI32 factor = hn::ShiftLeft<23>(hn::Sub(hn::Set(kI32, 254), e));
    // 2^-127, for exponent 0, is subnormal.
    const VecI32 scale = hn::Max(hn::ShiftLeft<23>(e), hn::Set(kI32, 0x00400000));
    hn::StoreU(hn::BitCast(kF32, factor), kF32, blocks.factors.data() + b);
    hn::StoreU(hn::Mul(hn::BitCast(kF32, scale), hn::Set(kF32, Narrowed<Source>::kUnit)), kF32,
               blocks.scales.data() + b);
  }
  const auto most = static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(kI32, largest)));
  return most < Source::kInfinity;
}

template <typename Format>
HWY_INLINE VecF32 round_to(VecF32 y) {
  const VecF32 magic = hn::Set(kF32, 0x1.8p+23f / (1 << Format::kMantissaBits));
  const VecI32 exponent = hn::And(hn::BitCast(kI32, y), hn::Set(kI32, 0x7F800000));
  constexpr auto kMinNormal = static_cast<std::int32_t>(bits_from_f32(Format::kMinNormal));
  const VecF32 power = hn::BitCast(kF32, hn::Max(exponent, hn::Set(kI32, kMinNormal)));
  // The product is exact, so both steps round once, with and without fma.
  return hn::NegMulAdd(power, magic, hn::MulAdd(power, magic, y));
}

// Returns false, and writes nothing, if the chunk is not finite.
template <typename Source, typename Format>
HWY_INLINE bool simulate_chunk(const typename Source::Element* x, typename Source::Element* y) {
  Maxima<Source> maxima;
  block_maxima<Source, kBlock>(x, maxima);
  Blocks blocks;
  if (!make_scales<Source, Format>(maxima, blocks)) return false;
  const auto step = static_cast<std::int64_t>(2 * hn::Lanes(kU32));
  for (std::int64_t i = 0; i < kChunk; i += step) {
    const auto words = Source::load(x + i);
    const VecF32 factors = factors_of_lanes<kBlock>(blocks.factors.data() + i / kBlock);
    const VecF32 scales = factors_of_lanes<kBlock>(blocks.scales.data() + i / kBlock);
    const VecF32 low = round_to<Format>(hn::Mul(Source::low_value(words), factors));
    const VecF32 high = round_to<Format>(hn::Mul(Source::high_value(words), factors));
    Narrowed<Source>::store(hn::Mul(low, scales), hn::Mul(high, scales), y + i);
  }
  return true;
}

template <typename Source, typename Format>
void simulate_chunks(const QuantScheme& scheme, const void* data, std::int64_t hidden, void* out) {
  using Element = typename Source::Element;
  const auto* x = static_cast<const Element*>(data);
  auto* y = static_cast<Element*>(out);
  for (std::int64_t begin = 0; begin < hidden; begin += kChunk) {
    const std::int64_t n = std::min(kChunk, hidden - begin);
    bool is_done = false;
    if (n == kChunk) {
      prefetch_ahead(x + begin, n, hidden);
      is_done = simulate_chunk<Source, Format>(x + begin, y + begin);
    } else {
      std::array<Element, kChunk> padded{};
      std::copy_n(x + begin, n, padded.data());
      is_done = simulate_chunk<Source, Format>(padded.data(), padded.data());
      if (is_done) std::copy_n(padded.data(), n, y + begin);
    }
    if (!is_done) {
      scalar::quantize_row(scheme, x + begin, Source::kDType, n,
                           reinterpret_cast<std::uint8_t*>(y + begin), nullptr);
    }
  }
}

template <typename Source>
void simulate_source(const QuantScheme& scheme, const void* x, std::int64_t hidden, void* y) {
  if (scheme.dtype == DType::kE2M3) return simulate_chunks<Source, E2M3>(scheme, x, hidden, y);
  simulate_chunks<Source, E3M2>(scheme, x, hidden, y);
}

void simulate_row(const QuantScheme& scheme, const void* x, DType dtype, std::int64_t hidden,
                  void* y) {
  switch (dtype) {
    case DType::kBF16: return simulate_source<Bf16>(scheme, x, hidden, y);
    case DType::kF16: return simulate_source<F16>(scheme, x, hidden, y);
    default: return simulate_source<F32>(scheme, x, hidden, y);
  }
}

#else  // no vectors: the scalar definition

void simulate_row(const QuantScheme& scheme, const void* x, DType dtype, std::int64_t hidden,
                  void* y) {
  scalar::quantize_row(scheme, x, dtype, hidden, static_cast<std::uint8_t*>(y), nullptr);
}

#endif

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace switchyard::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace switchyard::simd {

HWY_EXPORT(simulate_row);

void simulate_row(const QuantScheme& scheme, const void* x, DType dtype, std::int64_t hidden,
                  void* y) {
  HWY_DYNAMIC_DISPATCH(simulate_row)(scheme, x, dtype, hidden, y);
}

}  // namespace switchyard::simd
#endif
