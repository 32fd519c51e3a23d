// SPDX-License-Identifier: Apache-2.0
//
// block_maxima-inl.h: the largest magnitude of each block of 16 or 32 elements, which is shorter
// than some vectors. Included once per Highway target.
//
// The blocks of a whole chunk are reduced together, as maxima of de-interleaved vectors, four to
// one each time.

// Highway's include guard: once per target.
#if defined(SWITCHYARD_QUANT_BLOCK_MAXIMA_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SWITCHYARD_QUANT_BLOCK_MAXIMA_INL_H_
#undef SWITCHYARD_QUANT_BLOCK_MAXIMA_INL_H_
#else
#define SWITCHYARD_QUANT_BLOCK_MAXIMA_INL_H_
#endif

#include <array>
#include <type_traits>

#include "quant/elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace switchyard::simd {
namespace HWY_NAMESPACE {
#if HWY_TARGET != HWY_SCALAR

constexpr std::int64_t kChunk = 1024;  // elements whose blocks are reduced together

// Bit patterns without sign, one per block; the rest is scratch.
template <typename Source>
using Maxima =
    std::array<std::conditional_t<Source::kDType == DType::kF32, std::uint32_t, std::uint16_t>,
               kChunk / 4>;

// y[i] = the largest bit pattern without sign among x[4i] to x[4i + 3]; y may be x. num_outputs is
// a multiple of 64 bytes.
template <typename Element, typename Bits>
HWY_INLINE void max_of_four(const Element* x, std::int64_t num_outputs, Bits* y) {
  constexpr hn::CappedTag<Element, 64 / sizeof(Element)> d{};
  constexpr hn::RebindToUnsigned<decltype(d)> du{};
  constexpr hn::RebindToSigned<decltype(d)> di{};
  const auto mask = hn::Set(du, static_cast<Bits>(static_cast<Bits>(~Bits{0}) >> 1));
  const auto magnitude = [&](auto v) { return hn::BitCast(di, hn::And(hn::BitCast(du, v), mask)); };
  for (std::int64_t i = 0; i < num_outputs; i += static_cast<std::int64_t>(hn::Lanes(d))) {
    hn::Vec<decltype(d)> v0, v1, v2, v3;
    hn::LoadInterleaved4(d, x + 4 * i, v0, v1, v2, v3);
    const auto largest =
        hn::Max(hn::Max(magnitude(v0), magnitude(v1)), hn::Max(magnitude(v2), magnitude(v3)));
    hn::StoreU(hn::BitCast(du, largest), du, y + i);
  }
}

// The same for two patterns without signs, in place.
template <typename Bits>
HWY_INLINE void max_of_two(std::int64_t num_outputs, Bits* x) {
  constexpr hn::CappedTag<Bits, 64 / sizeof(Bits)> d{};
  constexpr hn::RebindToSigned<decltype(d)> di{};
  for (std::int64_t i = 0; i < num_outputs; i += static_cast<std::int64_t>(hn::Lanes(d))) {
    hn::Vec<decltype(d)> v0, v1;
    hn::LoadInterleaved2(d, x + 2 * i, v0, v1);
    const auto largest = hn::Max(hn::BitCast(di, v0), hn::BitCast(di, v1));
    hn::StoreU(hn::BitCast(d, largest), d, x + i);
  }
}

HWY_INLINE VecU32 load_bits(const std::uint16_t* bits) {
  constexpr hn::Rebind<std::uint16_t, decltype(kU32)> d16{};
  return hn::PromoteTo(kU32, hn::LoadU(d16, bits));
}
HWY_INLINE VecU32 load_bits(const std::uint32_t* bits) { return hn::LoadU(kU32, bits); }

// The maxima of a chunk's blocks; above kInfinity where a block has a NaN.
template <typename Source, std::int64_t kBlock>
HWY_INLINE void block_maxima(const typename Source::Element* x, Maxima<Source>& maxima) {
  static_assert(kBlock == 16 || kBlock == 32);
  max_of_four(x, kChunk / 4, maxima.data());
  max_of_four(maxima.data(), kChunk / 16, maxima.data());
  if (kBlock == 32) max_of_two(kChunk / 32, maxima.data());
}

// One factor per lane; a lane holds two elements, so a block of 16 has 8 lanes, fewer than a
// 512-bit vector. `factors` is that of the first lane's block.
template <std::int64_t kBlock>
HWY_INLINE VecF32 factors_of_lanes(const float* factors) {
  constexpr int kLanesLog2 = kBlock == 16 ? 3 : 4;
  if (static_cast<std::int64_t>(2 * hn::Lanes(kU32)) <= kBlock) return hn::Set(kF32, *factors);
  const auto block_of_lane =
      hn::IndicesFromVec(kF32, hn::ShiftRight<kLanesLog2>(hn::Iota(kI32, 0)));
  return hn::TableLookupLanes(hn::LoadU(kF32, factors), block_of_lane);
}

#endif  // HWY_TARGET != HWY_SCALAR
}  // namespace HWY_NAMESPACE
}  // namespace switchyard::simd
HWY_AFTER_NAMESPACE();

#endif  // include guard
