// SPDX-License-Identifier: Apache-2.0
//
// The micro-kernel multiplies R rows by two vectors of outputs, with all sums in registers; each
// step broadcasts one element of every row. Lanes are outputs, never partial sums: order is fixed.
//
// bf16 weights stay 16 bits wide in memory. Each 32-bit word of a vector holds two adjacent ones: a
// shift widens the even outputs and a mask the odd ones, without a shuffle; the order is restored
// when sums are stored. Loop order and packing of rows follow Goto and van de Geijn, "Anatomy of
// High-Performance Matrix Multiplication" (2008).
#include "cpu/gemm.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "core/bytes.h"

// Arrays of vectors need vectors of known size.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/gemm.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

using Floats = hn::ScalableTag<float>;
using V = hn::Vec<Floats>;

// Two vectors of sums per row, two of weights and a broadcast: 27 of 32 registers, or 15 of 16.
constexpr int kMaxRows = HWY_CAP_GE512 || HWY_ARCH_ARM_A64 ? 12 : 6;

// With few rows, memory is the limit, and hardware prefetching alone stops at page boundaries.
constexpr std::size_t kPrefetchRows = 4;
constexpr std::ptrdiff_t kPrefetchElements = 32 * kPanel;

struct Pair {
  V first;
  V second;
};

struct WeightsF32 {
  using Element = float;
  static HWY_INLINE Pair load(Floats d, const float* w) {
    return {hn::LoadU(d, w), hn::LoadU(d, w + hn::Lanes(d))};
  }
  static HWY_INLINE Pair load_sums(Floats d, const float* y) { return load(d, y); }
  static HWY_INLINE void store_sums(Floats d, const Pair& sums, float* y) {
    hn::StoreU(sums.first, d, y);
    hn::StoreU(sums.second, d, y + hn::Lanes(d));
  }
};

struct WeightsBF16 {
  using Element = std::uint16_t;
  static_assert(std::endian::native == std::endian::little, "even outputs are the low halves");

  static HWY_INLINE Pair load(Floats d, const std::uint16_t* w) {
#if HWY_TARGET == HWY_SCALAR
    return {load_bf16(d, w), load_bf16(d, w + 1)};
#else
    const hn::RebindToUnsigned<Floats> du;
    const hn::Repartition<std::uint16_t, Floats> halves;
    const auto pairs = hn::BitCast(du, hn::LoadU(halves, w));
    return {hn::BitCast(d, hn::ShiftLeft<16>(pairs)),
            hn::BitCast(d, hn::And(pairs, hn::Set(du, 0xFFFF0000u)))};
#endif
  }
  static HWY_INLINE Pair load_sums(Floats d, const float* y) {
    Pair sums{hn::Zero(d), hn::Zero(d)};
    hn::LoadInterleaved2(d, y, sums.first, sums.second);
    return sums;
  }
  static HWY_INLINE void store_sums(Floats d, const Pair& sums, float* y) {
    hn::StoreInterleaved2(sums.first, sums.second, d, y);
  }
};

template <std::size_t R>
HWY_INLINE void multiply_add(Floats d, float x, const Pair& w, std::array<Pair, R>& sums,
                             std::size_t r) {
  const V broadcast = hn::Set(d, x);
  sums[r].first = fused_mul_add(d, broadcast, w.first, sums[r].first);
  sums[r].second = fused_mul_add(d, broadcast, w.second, sums[r].second);
}

// x is packed [depth][R]; w and y start at the first of two vectors of outputs. Fold expressions
// unroll the rows, so that all sums stay in registers.
template <typename Weights, std::size_t... Row>
HWY_INLINE void add_products(const float* x, const typename Weights::Element* w, std::int64_t depth,
                             bool is_first_block, float* y, std::int64_t y_stride,
                             std::index_sequence<Row...>) {
  constexpr std::size_t kRows = sizeof...(Row);
  const Floats d;
  const auto y_row = [=](std::size_t r) { return y + static_cast<std::int64_t>(r) * y_stride; };
  std::array<Pair, kRows> sums;
  if (is_first_block) {
    ((sums[Row] = Pair{hn::Zero(d), hn::Zero(d)}), ...);
  } else {
    ((sums[Row] = Weights::load_sums(d, y_row(Row))), ...);
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    if constexpr (kRows <= kPrefetchRows) hwy::Prefetch(w + kPrefetchElements);
    const Pair weights = Weights::load(d, w);
    (multiply_add(d, x[Row], weights, sums, Row), ...);
    x += kRows;
    w += kPanel;
  }
  (Weights::store_sums(d, sums[Row], y_row(Row)), ...);
}

// One panel times one block of R rows, two vectors of outputs at a time.
template <typename Weights, std::size_t R>
HWY_ATTR void multiply_panel(const float* x, const typename Weights::Element* w, std::int64_t depth,
                             bool is_first_block, float* y, std::int64_t y_stride) {
  constexpr std::int64_t kStep = 2 * static_cast<std::int64_t>(hn::MaxLanes(Floats()));
  static_assert(kPanel % kStep == 0);
  for (std::int64_t n = 0; n < kPanel; n += kStep) {
    add_products<Weights>(x, w + n, depth, is_first_block, y + n, y_stride,
                          std::make_index_sequence<R>());
  }
}

template <typename Weights>
using MultiplyPanel = void (*)(const float*, const typename Weights::Element*, std::int64_t, bool,
                               float*, std::int64_t);

template <typename Weights, std::size_t... R>
constexpr std::array<MultiplyPanel<Weights>, sizeof...(R)> panel_functions(
    std::index_sequence<R...>) {
  return {multiply_panel<Weights, R + 1>...};
}

// Transposes rows to [num_columns][num_rows].
void transpose(const float* x, std::int64_t x_stride, std::int64_t num_rows,
               std::int64_t num_columns, float* packed) {
  for (std::int64_t c = 0; c < num_columns; ++c) {
    for (std::int64_t r = 0; r < num_rows; ++r) *packed++ = x[r * x_stride + c];
  }
}

template <typename Weights>
void gemm_of(const float* x, std::int64_t x_stride, std::int64_t num_rows, const PackedMatrix& w,
             float* y, std::int64_t y_stride, float* scratch) {
  static constexpr auto kFunctions = panel_functions<Weights>(std::make_index_sequence<kMaxRows>());
  const auto* panels = reinterpret_cast<const typename Weights::Element*>(w.panels);
  // Splits 13 rows into 7 and 6, not 12 and 1: with few rows the FMA units wait for sums.
  const std::int64_t block = cdiv(num_rows, cdiv(num_rows, std::int64_t{kMaxRows}));
  const std::int64_t depth_block = num_rows <= kFewRows ? w.depth : kDepthBlock;
  for (std::int64_t k = 0; k < w.depth; k += depth_block) {
    const std::int64_t depth = std::min(depth_block, w.depth - k);
    for (std::int64_t r = 0; r < num_rows; r += block) {
      transpose(x + r * x_stride + k, x_stride, std::min(block, num_rows - r), depth,
                scratch + r * depth);
    }
    for (std::int64_t p = 0; p < w.num_panels; ++p) {
      const auto* panel = panels + (p * w.depth + k) * kPanel;
      for (std::int64_t r = 0; r < num_rows; r += block) {
        const auto rows = static_cast<std::size_t>(std::min(block, num_rows - r));
        kFunctions[rows - 1](scratch + r * depth, panel, depth, k == 0,
                             y + r * y_stride + p * kPanel, y_stride);
      }
    }
  }
}

void gemm_bf16(const float* x, std::int64_t x_stride, std::int64_t num_rows, const PackedMatrix& w,
               float* y, std::int64_t y_stride, float* scratch) {
  gemm_of<WeightsBF16>(x, x_stride, num_rows, w, y, y_stride, scratch);
}

void gemm_f32(const float* x, std::int64_t x_stride, std::int64_t num_rows, const PackedMatrix& w,
              float* y, std::int64_t y_stride, float* scratch) {
  gemm_of<WeightsF32>(x, x_stride, num_rows, w, y, y_stride, scratch);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace switchyard {
namespace {

HWY_EXPORT(gemm_bf16);
HWY_EXPORT(gemm_f32);

}  // namespace

void gemm(const float* x, std::int64_t x_stride, std::int64_t num_rows, const PackedMatrix& w,
          float* y, std::int64_t y_stride, float* scratch) {
  if (num_rows == 0) return;
  if (w.dtype == DType::kBF16) {
    HWY_DYNAMIC_DISPATCH(gemm_bf16)(x, x_stride, num_rows, w, y, y_stride, scratch);
  } else {
    HWY_DYNAMIC_DISPATCH(gemm_f32)(x, x_stride, num_rows, w, y, y_stride, scratch);
  }
}

}  // namespace switchyard
#endif  // HWY_ONCE
