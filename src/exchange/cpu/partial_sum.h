// SPDX-License-Identifier: Apache-2.0
//
// partial_sum.h: weighted sum of rows of one token, in order. Memory is reused from sum to sum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "switchyard/quant.h"

#include "core/aligned_buffer.h"

namespace switchyard {

class PartialSum {
 public:
  explicit PartialSum(std::int64_t hidden) : hidden_(hidden) {}

  void clear();
  /// Adds a row of bf16, f16 or f32, which must stay valid until `sum`.
  void add(const void* row, DType dtype, float weight);
  /// Adds a row in the wire form of a scheme, scales apart. It must stay valid until `sum`.
  void add_stored(const QuantScheme& scheme, const std::byte* row, const void* scales,
                  float weight);
  /// The same, for a row that need not stay valid.
  void add_copy(const QuantScheme& scheme, const std::byte* row, const void* scales, float weight);
  /// Adds the sum of `inner`, rounded to `dtype`. `inner` and `row`, a row of that dtype which may
  /// be written, must stay valid until `sum`, and `inner` must not change.
  void add_sum(PartialSum& inner, DType dtype, std::byte* row);

  /// to = round(sum of weight * row): a chain of f32 fma from +0, in the order in which rows were
  /// added, rounded once to `dtype`.
  void sum(void* to, DType dtype);

 private:
  float* new_wide_row();
  void widen_all();
  bool is_uniform(DType dtype) const;

  std::int64_t hidden_;
  std::vector<const void*> rows_;
  std::vector<DType> dtypes_;
  std::vector<float> weights_;
  std::vector<AlignedBuffer> wide_;  ///< f32 rows, as many as any sum has needed
  std::size_t num_wide_ = 0;
  PartialSum* inner_ = nullptr;
  std::size_t inner_at_ = 0;
  std::byte* inner_row_ = nullptr;
};

}  // namespace switchyard
