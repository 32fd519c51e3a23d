// SPDX-License-Identifier: Apache-2.0
//
// partial_sum.h: the rows of one token as terms of a sum, in order. Memory is kept from sum to sum.
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
  /// A row of bf16, f16 or f32, which must stay until the sum.
  void add(const void* row, DType dtype, float weight);
  /// A row as it travels under a scheme, scales apart; must stay until the sum.
  void add_stored(const QuantScheme& scheme, const std::byte* row, const void* scales,
                  float weight);
  /// The same for a row that need not stay.
  void add_copy(const QuantScheme& scheme, const std::byte* row, const void* scales, float weight);

  /// to = round(sum of weight * row in f32, in the order of adding, from +0), fma for each term.
  void sum(void* to, DType dtype);

 private:
  float* new_wide_row();
  void widen_all();

  std::int64_t hidden_;
  std::vector<const void*> rows_;
  std::vector<DType> dtypes_;
  std::vector<float> weights_;
  std::vector<AlignedBuffer> wide_;  ///< f32 rows, as many as any sum wanted
  std::size_t num_wide_ = 0;
};

}  // namespace switchyard
