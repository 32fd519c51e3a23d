// SPDX-License-Identifier: Apache-2.0
//
// batch_rows.h: expert-major rows with one count per expert. A matrix is a batch of one expert
// whose rows all count.
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchyard/quant.h"
#include "switchyard/tensor.h"

namespace switchyard {

struct BatchRows {
  TensorView x;
  std::int64_t num_experts = 1;
  std::int64_t capacity = 0;
  std::int64_t hidden = 0;
  const std::int32_t* counts = nullptr;  ///< null: all rows

  std::int64_t num_rows(std::int64_t e) const {
    return counts == nullptr ? capacity : std::int64_t{counts[e]};
  }
  const std::byte* row(std::int64_t e, std::int64_t n) const {
    const int rows_dim = x.num_dims() - 2;
    const std::int64_t first = x.num_dims() == 3 ? e * x.stride(0) : 0;
    return x.as<std::byte>() + (first + n * x.stride(rows_dim)) * (bits_of(x.dtype()) / 8);
  }
};

/// Errors, here and below: kInvalidArgument; the message starts with `function`.
BatchRows check_matrix_rows(const char* function, const TensorView& x);
BatchRows check_batch_rows(const char* function, const TensorView& x, const TensorView& counts);

/// Refuses counts that are not in [0, capacity]. Reads the counts.
void check_counts(const char* function, const BatchRows& rows);

/// Checks that q is contiguous, of `dtype`, and shaped as `rows` with `hidden` elements per row, in
/// whole bytes.
void check_batch_codes(const char* function, const TensorView& q, DType dtype,
                       const BatchRows& rows, std::int64_t hidden);

}  // namespace switchyard
