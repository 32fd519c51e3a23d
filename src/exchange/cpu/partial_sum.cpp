// SPDX-License-Identifier: Apache-2.0

#include "exchange/cpu/partial_sum.h"

#include <algorithm>

#include "cpu/weigh_reduce.h"
#include "quant/rows.h"

namespace switchyard {

void PartialSum::clear() {
  rows_.clear();
  dtypes_.clear();
  weights_.clear();
  num_wide_ = 0;
  inner_ = nullptr;
}

void PartialSum::add(const void* row, DType dtype, float weight) {
  rows_.push_back(row);
  dtypes_.push_back(dtype);
  weights_.push_back(weight);
}

void PartialSum::add_stored(const QuantScheme& scheme, const std::byte* row, const void* scales,
                            float weight) {
  if (!scheme.is_quantized()) return add(row, scheme.dtype, weight);
  add_copy(scheme, row, scales, weight);
}

void PartialSum::add_copy(const QuantScheme& scheme, const std::byte* row, const void* scales,
                          float weight) {
  float* wide = new_wide_row();
  dequantize_row(scheme, row, scales, scheme.dtype, hidden_, wide);
  add(wide, DType::kF32, weight);
}

float* PartialSum::new_wide_row() {
  if (num_wide_ == wide_.size()) {
    wide_.emplace_back(static_cast<std::size_t>(hidden_) * sizeof(float));
  }
  return wide_[num_wide_++].as<float>();
}

void PartialSum::add_sum(PartialSum& inner, DType dtype, std::byte* row) {
  inner_ = &inner;
  inner_at_ = rows_.size();
  inner_row_ = row;
  add(row, dtype, 1.0f);
}

bool PartialSum::is_uniform(DType dtype) const {
  return std::all_of(dtypes_.begin(), dtypes_.end(), [&](DType d) { return d == dtype; });
}

// For a sum of rows with different dtypes: f32 holds each of them exactly.
void PartialSum::widen_all() {
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    if (dtypes_[i] == DType::kF32) continue;
    float* wide = new_wide_row();
    dequantize_row({dtypes_[i]}, static_cast<const std::byte*>(rows_[i]), nullptr, dtypes_[i],
                   hidden_, wide);
    rows_[i] = wide;
    dtypes_[i] = DType::kF32;
  }
}

void PartialSum::sum(void* to, DType dtype) {
  const DType row_dtype = dtypes_.empty() ? DType::kBF16 : dtypes_.front();
  if (inner_ != nullptr) {
    const bool is_bf16 = dtype == DType::kBF16 && is_uniform(dtype) && inner_->is_uniform(dtype);
    const InnerSum inner = {static_cast<int>(inner_at_), inner_->rows_.data(),
                            inner_->weights_.data(), static_cast<int>(inner_->rows_.size())};
    if (is_bf16 &&
        weigh_reduce_nested(rows_.data(), weights_.data(), static_cast<int>(rows_.size()), inner,
                            hidden_, static_cast<std::uint16_t*>(to))) {
      return;
    }
    inner_->sum(inner_row_, dtypes_[inner_at_]);
  }
  if (!is_uniform(row_dtype)) widen_all();
  weigh_reduce_row(rows_.data(), dtypes_.empty() ? DType::kBF16 : dtypes_.front(), weights_.data(),
                   static_cast<int>(rows_.size()), hidden_, to, dtype);
}

}  // namespace switchyard
