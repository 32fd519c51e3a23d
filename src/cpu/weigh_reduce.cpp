// SPDX-License-Identifier: Apache-2.0
//
// A few vectors at a time are summed over all rows in registers. From bf16 to bf16, the way of
// nearly every exchange, they are also rounded there; between other types they are rounded from a
// buffer in L1. Each row is read once, and nothing but the result is written.
#include "cpu/weigh_reduce.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>

#include "core/fail.h"
#include "quant/rows.h"

// The padded copy of a vector needs a size known at compile time.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/weigh_reduce.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

#include "cpu/simd-inl.h"

#ifndef SWITCHYARD_CPU_WEIGH_REDUCE_ONCE
#define SWITCHYARD_CPU_WEIGH_REDUCE_ONCE
namespace switchyard {

struct WeighReduceRows {
  const void* const* rows;
  const float* weights;  // null: plain sum
  int num_rows;
};

constexpr int kNoInnerSum = -1;

}  // namespace switchyard
#endif

HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

using Floats = hn::ScalableTag<float>;
using V = hn::Vec<Floats>;

struct LoadF32 {
  using Element = float;
  static HWY_INLINE V load(Floats d, const float* x) { return hn::LoadU(d, x); }
};
struct LoadBF16 {
  using Element = std::uint16_t;
  static HWY_INLINE V load(Floats d, const std::uint16_t* x) { return load_bf16(d, x); }
};
struct LoadF16 {
  using Element = std::uint16_t;
  static HWY_INLINE V load(Floats d, const std::uint16_t* x) { return load_f16(d, x); }
};

template <typename Load>
constexpr std::ptrdiff_t kElementsPerLine = 64 / sizeof(typename Load::Element);

HWY_INLINE V add_row(Floats d, const float* weight, V row, V acc) {
  return weight == nullptr ? hn::Add(acc, row) : fused_mul_add(d, hn::Set(d, *weight), row, acc);
}

HWY_INLINE void store_canonical(Floats d, V acc, float* sum) {
  const V nan = hn::Set(d, std::numeric_limits<float>::quiet_NaN());
  hn::StoreU(hn::IfThenElse(hn::IsNaN(acc), nan, acc), d, sum);
}

// How far ahead rows are prefetched: hardware prefetching alone does not keep up with so many short
// streams. Measured with four bf16 rows: 22 GB/s instead of 19.
constexpr std::ptrdiff_t kBytesAhead = 1024;

// Sums four vectors per step, so that the additions of a row hide each other's latency.
template <typename Load>
HWY_INLINE void sum_four(Floats d, const WeighReduceRows& in, std::int64_t at, float* sum) {
  const auto lanes = static_cast<std::ptrdiff_t>(hn::Lanes(d));
  V a = hn::Zero(d), b = a, c = a, e = a;
  for (int i = 0; i < in.num_rows; ++i) {
    const auto* x = static_cast<const typename Load::Element*>(in.rows[i]) + at;
    const float* weight = in.weights == nullptr ? nullptr : in.weights + i;
    for (std::ptrdiff_t line = 0; line < 4 * lanes; line += kElementsPerLine<Load>) {
      hwy::Prefetch(reinterpret_cast<const char*>(x + line) + kBytesAhead);
    }
    a = add_row(d, weight, Load::load(d, x), a);
    b = add_row(d, weight, Load::load(d, x + lanes), b);
    c = add_row(d, weight, Load::load(d, x + 2 * lanes), c);
    e = add_row(d, weight, Load::load(d, x + 3 * lanes), e);
  }
  store_canonical(d, a, sum);
  store_canonical(d, b, sum + lanes);
  store_canonical(d, c, sum + 2 * lanes);
  store_canonical(d, e, sum + 3 * lanes);
}

// Sums the last elements, fewer than a vector, through a padded copy.
template <typename Load>
HWY_INLINE void sum_one(Floats d, const WeighReduceRows& in, std::int64_t at, std::size_t count,
                        float* sum) {
  using Element = typename Load::Element;
  V acc = hn::Zero(d);
  for (int i = 0; i < in.num_rows; ++i) {
    HWY_ALIGN Element padded[hn::MaxLanes(Floats())] = {};
    std::memcpy(padded, static_cast<const Element*>(in.rows[i]) + at, count * sizeof(Element));
    const float* weight = in.weights == nullptr ? nullptr : in.weights + i;
    acc = add_row(d, weight, Load::load(d, padded), acc);
  }
  HWY_ALIGN float padded_sum[hn::MaxLanes(Floats())];
  store_canonical(d, acc, padded_sum);
  std::memcpy(sum, padded_sum, count * sizeof(float));
}

template <typename Load>
HWY_ATTR void sum_block(const WeighReduceRows& in, std::int64_t first, std::int64_t count,
                        float* sum) {
  const Floats d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t at = 0;
  for (; at + 4 * lanes <= count; at += 4 * lanes) sum_four<Load>(d, in, first + at, sum + at);
  for (; at < count; at += lanes) {
    const std::int64_t left = std::min(lanes, count - at);
    sum_one<Load>(d, in, first + at, static_cast<std::size_t>(left), sum + at);
  }
}

#if HWY_TARGET != HWY_SCALAR
// A 32-bit lane holds two adjacent bf16, `low` and `high`, so nothing is shuffled.
struct Bf16Pairs {
  V low;
  V high;
};

using Words = hn::ScalableTag<std::uint32_t>;
using VecWords = hn::Vec<Words>;

HWY_INLINE VecWords load_words(const std::uint16_t* x) {
  return hn::BitCast(Words(), hn::LoadU(hn::Repartition<std::uint16_t, Words>(), x));
}

HWY_INLINE void add_words(Floats d, const float* weight, VecWords words, Bf16Pairs& sum) {
  const VecWords high = hn::And(words, hn::Set(Words(), 0xFFFF0000u));
  sum.low = add_row(d, weight, hn::BitCast(d, hn::ShiftLeft<16>(words)), sum.low);
  sum.high = add_row(d, weight, hn::BitCast(d, high), sum.high);
}

// The upper half of each lane is the sum as bf16, rounded to nearest, ties to even.
HWY_INLINE VecWords round_upper_half(Floats d, V sum) {
  const V nan = hn::Set(d, std::numeric_limits<float>::quiet_NaN());
  const VecWords bits = hn::BitCast(Words(), hn::IfThenElse(hn::IsNaN(sum), nan, sum));
  const VecWords odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(Words(), 1u));
  return hn::Add(bits, hn::Add(odd, hn::Set(Words(), 0x7FFFu)));
}

// The same as two f32.
HWY_INLINE Bf16Pairs round_pairs(Floats d, const Bf16Pairs& sum) {
  const VecWords upper = hn::Set(Words(), 0xFFFF0000u);
  return {hn::BitCast(d, hn::And(round_upper_half(d, sum.low), upper)),
          hn::BitCast(d, hn::And(round_upper_half(d, sum.high), upper))};
}

HWY_INLINE void store_pairs(Floats d, const Bf16Pairs& sum, std::uint16_t* out) {
  const VecWords low = hn::ShiftRight<16>(round_upper_half(d, sum.low));
  const VecWords high = hn::And(round_upper_half(d, sum.high), hn::Set(Words(), 0xFFFF0000u));
  const hn::Repartition<std::uint16_t, Words> halves;
  hn::StoreU(hn::BitCast(halves, hn::Or(low, high)), halves, out);
}

// What one step sums: two vectors.
struct Bf16Step {
  Bf16Pairs first;
  Bf16Pairs second;
};

HWY_INLINE Bf16Step zero_step(Floats d) {
  const Bf16Pairs zero = {hn::Zero(d), hn::Zero(d)};
  return {zero, zero};
}

HWY_INLINE const float* weight_of(const WeighReduceRows& in, int row) {
  return in.weights == nullptr ? nullptr : in.weights + row;
}

HWY_INLINE void add_step(Floats d, const WeighReduceRows& in, int row, std::int64_t at,
                         Bf16Step& sum) {
  const auto vector = static_cast<std::ptrdiff_t>(2 * hn::Lanes(d));
  const auto* x = static_cast<const std::uint16_t*>(in.rows[row]) + at;
  for (std::ptrdiff_t line = 0; line < 2 * vector; line += kElementsPerLine<LoadBF16>) {
    hwy::Prefetch(reinterpret_cast<const char*>(x + line) + kBytesAhead);
  }
  add_words(d, weight_of(in, row), load_words(x), sum.first);
  add_words(d, weight_of(in, row), load_words(x + vector), sum.second);
}

HWY_INLINE void add_pairs(Floats d, const float* weight, const Bf16Pairs& row, Bf16Pairs& sum) {
  sum.low = add_row(d, weight, row.low, sum.low);
  sum.high = add_row(d, weight, row.high, sum.high);
}

// Sums and rounds whole steps; returns the number of elements done. Row `inner_at` is the sum of
// `inner`.
HWY_ATTR std::int64_t reduce_bf16(const WeighReduceRows& in, const WeighReduceRows& inner,
                                  int inner_at, std::int64_t hidden, std::uint16_t* out) {
  const Floats d;
  const auto vector = static_cast<std::ptrdiff_t>(2 * hn::Lanes(d));
  std::int64_t at = 0;
  for (; at + 2 * vector <= hidden; at += 2 * vector) {
    Bf16Step sum = zero_step(d);
    for (int i = 0; i < in.num_rows; ++i) {
      if (i != inner_at) {
        add_step(d, in, i, at, sum);
        continue;
      }
      Bf16Step part = zero_step(d);
      for (int j = 0; j < inner.num_rows; ++j) add_step(d, inner, j, at, part);
      add_pairs(d, weight_of(in, i), round_pairs(d, part.first), sum.first);
      add_pairs(d, weight_of(in, i), round_pairs(d, part.second), sum.second);
    }
    store_pairs(d, sum.first, out + at);
    store_pairs(d, sum.second, out + at + vector);
  }
  return at;
}
#else
HWY_ATTR std::int64_t reduce_bf16(const WeighReduceRows&, const WeighReduceRows&, int, std::int64_t,
                                  std::uint16_t*) {
  return 0;
}
#endif

HWY_ATTR void sum_f32(const WeighReduceRows& in, std::int64_t first, std::int64_t n, float* sum) {
  sum_block<LoadF32>(in, first, n, sum);
}
HWY_ATTR void sum_bf16(const WeighReduceRows& in, std::int64_t first, std::int64_t n, float* sum) {
  sum_block<LoadBF16>(in, first, n, sum);
}
HWY_ATTR void sum_f16(const WeighReduceRows& in, std::int64_t first, std::int64_t n, float* sum) {
  sum_block<LoadF16>(in, first, n, sum);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace switchyard {
namespace {

HWY_EXPORT(sum_f32);
HWY_EXPORT(sum_bf16);
HWY_EXPORT(sum_f16);
HWY_EXPORT(reduce_bf16);

void sum_rows(DType dtype, const WeighReduceRows& in, std::int64_t first, std::int64_t count,
              float* sum) {
  switch (dtype) {
    case DType::kF32: return HWY_DYNAMIC_DISPATCH(sum_f32)(in, first, count, sum);
    case DType::kBF16: return HWY_DYNAMIC_DISPATCH(sum_bf16)(in, first, count, sum);
    case DType::kF16: return HWY_DYNAMIC_DISPATCH(sum_f16)(in, first, count, sum);
    default:
      fail(Errc::kInvalidArgument, "weigh_reduce_row: rows are {}, must be bf16, f16 or f32",
           name_of(dtype));
  }
}

void round_to(DType dtype, const float* sum, std::int64_t first, std::int64_t count, void* out) {
  switch (dtype) {
    case DType::kF32: std::copy(sum, sum + count, static_cast<float*>(out) + first); return;
    case DType::kBF16: return f32_to_bf16(sum, count, static_cast<std::uint16_t*>(out) + first);
    case DType::kF16: return f32_to_f16(sum, count, static_cast<std::uint16_t*>(out) + first);
    default:
      fail(Errc::kInvalidArgument, "weigh_reduce_row: out is {}, must be bf16, f16 or f32",
           name_of(dtype));
  }
}

}  // namespace

void weigh_reduce_row(const void* const* rows, DType row_dtype, const float* weights, int num_rows,
                      std::int64_t hidden, void* out, DType out_dtype) {
  constexpr std::int64_t kBlock = 1024;
  HWY_ALIGN_MAX float sum[kBlock];
  const WeighReduceRows in = {rows, weights, num_rows};
  std::int64_t first = 0;
  if (row_dtype == DType::kBF16 && out_dtype == DType::kBF16) {
    first = HWY_DYNAMIC_DISPATCH(reduce_bf16)(in, {}, kNoInnerSum, hidden,
                                              static_cast<std::uint16_t*>(out));
  }
  for (; first < hidden; first += kBlock) {
    const std::int64_t count = std::min(kBlock, hidden - first);
    sum_rows(row_dtype, in, first, count, sum);
    round_to(out_dtype, sum, first, count, out);
  }
}

bool weigh_reduce_nested(const void* const* rows, const float* weights, int num_rows,
                         const InnerSum& inner, std::int64_t hidden, std::uint16_t* out) {
  constexpr std::int64_t kLongestStep = 64;
  if (hidden % kLongestStep != 0) return false;
  return HWY_DYNAMIC_DISPATCH(reduce_bf16)({rows, weights, num_rows},
                                           {inner.rows, inner.weights, inner.num_rows}, inner.at,
                                           hidden, out) == hidden;
}

}  // namespace switchyard
#endif  // HWY_ONCE
