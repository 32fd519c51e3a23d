// SPDX-License-Identifier: Apache-2.0

#include "quant/batch_rows.h"

#include "core/check_matrix.h"
#include "core/fail.h"

namespace switchyard {
namespace {

void check_rows(const char* function, const TensorView& x, int num_dims) {
  require(x.num_dims() == num_dims, Errc::kInvalidArgument, "{}: x is {}, must be {} dimensions",
          function, x.describe(), num_dims);
  require(x.dtype() == DType::kBF16 || x.dtype() == DType::kF16 || x.dtype() == DType::kF32,
          Errc::kInvalidArgument, "{}: x is {}, must be bf16, f16 or f32", function, x.describe());
  require(has_contiguous_rows(x), Errc::kInvalidArgument, "{}: x is {}, must be contiguous rows",
          function, x.describe());
}

}  // namespace

BatchRows check_matrix_rows(const char* function, const TensorView& x) {
  check_rows(function, x, 2);
  return {x, 1, x.shape(0), x.shape(1), nullptr};
}

BatchRows check_batch_rows(const char* function, const TensorView& x, const TensorView& counts) {
  check_rows(function, x, 3);
  require(counts.dtype() == DType::kI32 && counts.num_dims() == 1 &&
              counts.shape(0) == x.shape(0) && counts.is_contiguous(),
          Errc::kInvalidArgument, "{}: counts is {}, must be contiguous i32 [{}]", function,
          counts.describe(), x.shape(0));
  return {x, x.shape(0), x.shape(1), x.shape(2), counts.as<std::int32_t>()};
}

void check_counts(const char* function, const BatchRows& rows) {
  for (std::int64_t e = 0; rows.counts != nullptr && e < rows.num_experts; ++e) {
    require(rows.counts[e] >= 0 && rows.counts[e] <= rows.capacity, Errc::kInvalidArgument,
            "{}: counts[{}] is {}, must be from 0 to {} rows", function, e, rows.counts[e],
            rows.capacity);
  }
}

void check_batch_codes(const char* function, const TensorView& q, DType dtype,
                       const BatchRows& rows, std::int64_t hidden) {
  const bool is_batch = rows.x.num_dims() == 3;
  const TensorView want =
      is_batch ? TensorView(nullptr, dtype, {rows.num_experts, rows.capacity, hidden})
               : TensorView(nullptr, dtype, {rows.capacity, hidden});
  bool fits = q.dtype() == dtype && q.num_dims() == want.num_dims() && q.is_contiguous();
  for (int dim = 0; fits && dim < want.num_dims(); ++dim) fits = q.shape(dim) == want.shape(dim);
  require(fits, Errc::kInvalidArgument, "{}: q is {}, must be contiguous {}", function,
          q.describe(), want.describe());
  require(hidden * bits_of(dtype) % 8 == 0, Errc::kInvalidArgument,
          "{}: a row has {} elements of {}, must have whole bytes", function, hidden,
          name_of(dtype));
}

}  // namespace switchyard
