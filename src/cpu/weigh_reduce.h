// SPDX-License-Identifier: Apache-2.0
//
// weigh_reduce.h: the sum of a token's rows, in the order given, rounded once.
#pragma once

#include <cstdint>

#include "switchyard/dtype.h"

namespace switchyard {

/// out[h] = round(acc), where acc starts from +0 and for each row in order, in f32,
///   acc = fma(weights[i], rows[i][h], acc)    or, if weights is null,    acc = acc + rows[i][h]
/// The bits are the same on every machine: lanes are elements, never partial sums. NaN is written
/// as the canonical quiet NaN. Without rows the result is +0.
///
///   rows  [num_rows] pointers to `hidden` elements of `row_dtype`: bf16, f16 or f32
///   out   `hidden` elements of `out_dtype`: bf16, f16 or f32; may be one of the rows if the
///         dtypes are equal
void weigh_reduce_row(const void* const* rows, DType row_dtype, const float* weights, int num_rows,
                      std::int64_t hidden, void* out, DType out_dtype);

/// A summand that is a sum itself: of `rows`, rounded to bf16.
struct InnerSum {
  int at = 0;  ///< in place of this row of the outer sum
  const void* const* rows = nullptr;
  const float* weights = nullptr;
  int num_rows = 0;
};

/// The same sum of bf16 rows as bf16, where rows[inner.at] is not read: it is `inner`, which is
/// never written. False, and nothing is written, if `hidden` is no multiple of 64 or there are no
/// vectors.
[[nodiscard]] bool weigh_reduce_nested(const void* const* rows, const float* weights, int num_rows,
                                       const InnerSum& inner, std::int64_t hidden,
                                       std::uint16_t* out);

}  // namespace switchyard
