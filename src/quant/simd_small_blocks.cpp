// SPDX-License-Identifier: Apache-2.0
//
// simd_small_blocks.cpp: vectorized nvfp4, mxfp4 and mxfp8 rows: one-byte scales for blocks of 16
// or 32 elements, which are shorter than some vectors.
//
// A chunk of a row is processed in three passes: the largest magnitudes of all its blocks
// (block_maxima-inl.h); scales and factors, one lane per block; codes, each lane with the factor of
// its block. Chunks with NaN or infinity use the scalar definition. The end of a row is padded with
// zeros, which change no maximum.

#include <algorithm>
#include <array>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/simd_small_blocks.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "core/bytes.h"
#include "quant/block_maxima-inl.h"
#include "quant/codes-inl.h"
#include "quant/simd.h"

HWY_BEFORE_NAMESPACE();
namespace switchyard::simd {
namespace HWY_NAMESPACE {
namespace {

#if HWY_TARGET != HWY_SCALAR

constexpr std::size_t kMaxBlocks = kChunk / 16;
constexpr std::size_t kMaxLanes = 64;  // read past the last factor but never used

struct Blocks {
  alignas(64) std::array<std::uint8_t, kMaxBlocks + kMaxLanes> scales;
  alignas(64) std::array<float, kMaxBlocks + kMaxLanes> factors;
};

// The rules of scale_rules.h for many blocks: the scales' exponents or codes, and the factors.
struct RuleResult {
  VecU32 codes;
  VecF32 factors;
};

HWY_INLINE RuleResult mx_result(VecU32 exponents) {
  const VecU32 inverse = hn::Sub(hn::Set(kU32, 254u), exponents);
  return {exponents, hn::BitCast(kF32, hn::ShiftLeft<23>(inverse))};
}

struct Mxfp4Rule {
  HWY_INLINE RuleResult operator()(VecF32 amax) const {
    const VecU32 rounded = hn::Add(hn::BitCast(kU32, amax), hn::Set(kU32, 1u << 21));
    const VecI32 exponent = hn::BitCast(kI32, hn::ShiftRight<23>(rounded));
    return mx_result(
        hn::BitCast(kU32, hn::Sub(hn::Max(exponent, hn::Set(kI32, 2)), hn::Set(kI32, 2))));
  }
};

struct Mxfp8Rule {
  HWY_INLINE RuleResult operator()(VecF32 amax) const {
    const VecF32 quotient = hn::Div(amax, hn::Set(kF32, kE4M3Max));
    return mx_result(
        hn::ShiftRight<23>(hn::Add(hn::BitCast(kU32, quotient), hn::Set(kU32, 0x7FFFFFu))));
  }
};

struct Nvfp4Rule {
  float global_scale;
  HWY_INLINE RuleResult operator()(VecF32 amax) const {
    const VecF32 sixth = hn::Mul(amax, hn::Set(kF32, 1.0f / kE2M1Max));
    const VecF32 wanted = hn::Mul(hn::Set(kF32, global_scale), sixth);
    const VecU32 code =
        hn::And(E4M3Coder::one(hn::Min(wanted, hn::Set(kF32, kE4M3Max))), hn::Set(kU32, 0xFFu));
    const VecF32 normal = hn::BitCast(
        kF32, hn::Add(hn::ShiftLeft<20>(code), hn::Set(kU32, std::uint32_t{120} << 23)));
    const VecI32 number = hn::BitCast(kI32, code);
    const VecF32 subnormal = hn::Mul(hn::ConvertTo(kF32, number), hn::Set(kF32, 0x1p-9f));
    const auto is_subnormal = hn::RebindMask(kF32, hn::Lt(number, hn::Set(kI32, 8)));
    const VecF32 stored = hn::IfThenElse(is_subnormal, subnormal, normal);
    const VecF32 scale = hn::Mul(stored, hn::Set(kF32, 1.0f / global_scale));
    const auto is_zero = hn::RebindMask(kF32, hn::Eq(number, hn::Zero(kI32)));
    return {code, hn::IfThenZeroElse(is_zero, hn::Div(hn::Set(kF32, 1.0f), scale))};
  }
};

// Computes scales and factors of all blocks; false if an element is NaN or infinite.
template <typename Source, typename Rule>
HWY_INLINE bool make_scales(const Maxima<Source>& maxima, std::int64_t num_blocks, const Rule& rule,
                            Blocks& blocks) {
  constexpr hn::Rebind<std::uint8_t, decltype(kU32)> d8{};
  VecI32 largest = hn::Zero(kI32);
  for (std::size_t b = 0; b < static_cast<std::size_t>(num_blocks); b += hn::Lanes(kU32)) {
    const VecU32 bits = load_bits(maxima.data() + b);
    largest = hn::Max(largest, hn::BitCast(kI32, bits));
    const RuleResult result = rule(Source::widen(bits));
    hn::StoreU(hn::TruncateTo(d8, result.codes), d8, blocks.scales.data() + b);
    hn::StoreU(result.factors, kF32, blocks.factors.data() + b);
  }
  const auto most = static_cast<std::uint32_t>(hn::GetLane(hn::MaxOfLanes(kI32, largest)));
  return most < Source::kInfinity;
}

template <typename Source, typename Coder, std::int64_t kBlock>
HWY_INLINE void encode_chunk(const typename Source::Element* x, const Blocks& blocks,
                             std::uint8_t* q) {
  const auto step = static_cast<std::int64_t>(2 * hn::Lanes(kU32));
  for (std::int64_t i = 0; i < kChunk; i += step) {
    const VecF32 lanes = factors_of_lanes<kBlock>(blocks.factors.data() + i / kBlock);
    store_codes<Coder::kBits>(
        Coder::template codes<Source>(Source::load(x + i), MultiplyLanes{lanes}),
        q + i * Coder::kBits / 16);
  }
}

// Returns false, and writes nothing, if the chunk is not finite.
template <typename Source, typename Coder, std::int64_t kBlock, typename Rule>
HWY_INLINE bool quantize_chunk(const typename Source::Element* x, const Rule& rule, std::uint8_t* q,
                               std::uint8_t* scales) {
  Maxima<Source> maxima;
  block_maxima<Source, kBlock>(x, maxima);
  Blocks blocks;
  if (!make_scales<Source>(maxima, kChunk / kBlock, rule, blocks)) return false;
  encode_chunk<Source, Coder, kBlock>(x, blocks, q);
  std::memcpy(scales, blocks.scales.data(), kChunk / kBlock);
  return true;
}

template <typename Source, typename Coder, std::int64_t kBlock, typename Rule>
void quantize_chunks(const QuantScheme& scheme, const void* data, std::int64_t hidden,
                     const Rule& rule, std::uint8_t* q, std::uint8_t* scales, float tensor_scale) {
  using Element = typename Source::Element;
  const auto* x = static_cast<const Element*>(data);
  const auto code_bytes = [](std::int64_t n) { return n * Coder::kBits / 16; };
  for (std::int64_t begin = 0; begin < hidden; begin += kChunk) {
    const std::int64_t n = std::min(kChunk, hidden - begin);
    std::uint8_t* codes = q + code_bytes(begin);
    std::uint8_t* block_scales = scales + begin / kBlock;
    bool is_done = false;
    if (n == kChunk) {
      prefetch_ahead(x + begin, n, hidden);
      is_done = quantize_chunk<Source, Coder, kBlock>(x + begin, rule, codes, block_scales);
    } else {
      std::array<Element, kChunk> padded{};
      std::array<std::uint8_t, kChunk> padded_codes;
      std::array<std::uint8_t, kMaxBlocks> padded_scales;
      std::copy_n(x + begin, n, padded.data());
      is_done = quantize_chunk<Source, Coder, kBlock>(padded.data(), rule, padded_codes.data(),
                                                      padded_scales.data());
      if (is_done) {
        std::copy_n(padded_codes.data(), code_bytes(n), codes);
        std::copy_n(padded_scales.data(), cdiv(n, kBlock), block_scales);
      }
    }
    if (!is_done) {
      scalar::quantize_row(scheme, x + begin, Source::kDType, n, codes, block_scales, tensor_scale);
    }
  }
}

template <typename Source>
void quantize_source(const QuantScheme& scheme, const void* x, std::int64_t hidden, std::uint8_t* q,
                     void* scales, float tensor_scale) {
  auto* bytes = static_cast<std::uint8_t*>(scales);
  if (scheme.dtype == DType::kE4M3) {
    quantize_chunks<Source, E4M3Coder, 32>(scheme, x, hidden, Mxfp8Rule{}, q, bytes, tensor_scale);
  } else if (scheme.rule == ScaleRule::kMx) {
    quantize_chunks<Source, E2M1Coder, 32>(scheme, x, hidden, Mxfp4Rule{}, q, bytes, tensor_scale);
  } else if (tensor_scale > 0x1p-60f && tensor_scale < 0x1p60f) {
    // Within these bounds factors neither underflow to zero nor overflow
    quantize_chunks<Source, E2M1Coder, 16>(scheme, x, hidden, Nvfp4Rule{tensor_scale}, q, bytes,
                                           tensor_scale);
  } else {
    scalar::quantize_row(scheme, x, Source::kDType, hidden, q, scales, tensor_scale);
  }
}

void quantize_small_blocks(const QuantScheme& scheme, const void* x, DType dtype,
                           std::int64_t hidden, std::uint8_t* q, void* scales, float tensor_scale) {
  switch (dtype) {
    case DType::kBF16: return quantize_source<Bf16>(scheme, x, hidden, q, scales, tensor_scale);
    case DType::kF16: return quantize_source<F16>(scheme, x, hidden, q, scales, tensor_scale);
    default: return quantize_source<F32>(scheme, x, hidden, q, scales, tensor_scale);
  }
}

#else  // no vectors: the scalar definition

void quantize_small_blocks(const QuantScheme& scheme, const void* x, DType dtype,
                           std::int64_t hidden, std::uint8_t* q, void* scales, float tensor_scale) {
  scalar::quantize_row(scheme, x, dtype, hidden, q, scales, tensor_scale);
}

#endif

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace switchyard::simd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace switchyard::simd {

HWY_EXPORT(quantize_small_blocks);

void quantize_small_blocks(const QuantScheme& scheme, const void* x, DType dtype,
                           std::int64_t hidden, std::uint8_t* q, void* scales, float tensor_scale) {
  HWY_DYNAMIC_DISPATCH(quantize_small_blocks)(scheme, x, dtype, hidden, q, scales, tensor_scale);
}

}  // namespace switchyard::simd
#endif
