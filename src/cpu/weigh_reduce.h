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

}  // namespace switchyard
