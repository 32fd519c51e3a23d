// SPDX-License-Identifier: Apache-2.0

#include "core/check_matrix.h"

#include <algorithm>
#include <string>

#include "core/fail.h"
#include "core/format.h"

namespace switchyard {
namespace {

// For example "bf16, f16 or f32 [2, 8]".
std::string describe(const MatrixRule& rule) {
  std::string text;
  for (std::size_t i = 0; i < rule.dtypes.size(); ++i) {
    const char* separator = i == 0 ? "" : i + 1 == rule.dtypes.size() ? " or " : ", ";
    text += fmt::format("{}{}", separator, name_of(rule.dtypes.begin()[i]));
  }
  const std::string rows = rule.num_rows == kAnyRows ? "T" : std::to_string(rule.num_rows);
  return fmt::format("{} [{}, {}]{}", text, rows, rule.num_columns,
                     rule.may_have_row_stride ? "" : ", contiguous");
}

bool has_shape(const TensorView& view, const MatrixRule& rule) {
  return view.num_dims() == 2 && view.shape(1) == rule.num_columns &&
         (rule.num_rows == kAnyRows || view.shape(0) == rule.num_rows);
}

}  // namespace

void check_matrix(const TensorView& view, const MatrixRule& rule) {
  const bool dtype_fits =
      std::find(rule.dtypes.begin(), rule.dtypes.end(), view.dtype()) != rule.dtypes.end();
  if (!view.has_value() || !dtype_fits || !has_shape(view, rule) ||
      (!rule.may_have_row_stride && !view.is_contiguous())) {
    fail(Errc::kInvalidArgument, "{}: {} is {}, must be {}", rule.function, rule.name, view,
         describe(rule));
  }
  if (view.num_elements() == 0) return;
  require(view.stride(1) == 1 && view.stride(0) >= view.shape(1), Errc::kInvalidArgument,
          "{}: {} is {}, its rows must be contiguous and must not overlap", rule.function,
          rule.name, view);
  check_address(view, rule.function, rule.name);
}

bool has_contiguous_rows(const TensorView& view) {
  const int last = view.num_dims() - 1;
  return view.num_elements() == 0 || last < 0 || view.shape(last) == 1 || view.stride(last) == 1;
}

void check_address(const TensorView& view, const char* function, std::string_view name) {
  if (view.num_elements() == 0) return;
  const auto address = reinterpret_cast<std::uintptr_t>(view.data());
  const int alignment = std::max(1, bits_of(view.dtype()) / 8);
  require(address != 0 && address % static_cast<std::uintptr_t>(alignment) == 0,
          Errc::kInvalidArgument, "{}: {} starts at {}, must be a multiple of {} and not null",
          function, name, fmt::ptr(view.data()), alignment);
}

}  // namespace switchyard
