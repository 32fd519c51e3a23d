// SPDX-License-Identifier: Apache-2.0
//
// expert_input.h: checks the rows that experts receive, of any scheme and with scales in any
// layout, and converts them to f32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "switchyard/expert_rows.h"

#include "quant/scale_layout.h"

namespace switchyard {

/// Refuses rows, scales and a tensor scale that contradict the scheme or each other; does not look
/// at the ranges.
///
/// Errors: kInvalidArgument.
void check_input(std::int64_t num_experts, std::int64_t hidden, const ExpertRows& input);

/// Refuses ranges that lie outside the rows. Errors: kInvalidArgument.
void check_ranges(std::int64_t num_experts, const ExpertRows& input);

/// True for quantized rows that each have their own scales.
bool has_scale_a_row(const QuantScheme& scheme);

/// True when absent, f32 [1] or f32 [num_experts].
bool is_optional_expert_scalar(const TensorView& tensor, std::int64_t num_experts);

/// The value for `expert` in a tensor [1] or [L].
float expert_scalar(const TensorView& tensor, std::int64_t expert);

/// The values of all experts; empty when absent.
std::vector<float> expert_scalars(const TensorView& tensor, std::int64_t num_experts);

/// The bias of all experts, [L, outputs], as f32; empty when absent.
std::vector<float> widen_bias(const TensorView& bias);

/// Reads rows of a checked input as f32.
class InputReader {
 public:
  explicit InputReader(const ExpertRows& input);

  /// Writes [num_rows][H] floats to x. `scale_copy` has room for scale_row_bytes() of the scheme.
  void read(std::int64_t expert, std::int64_t first_row, std::int64_t num_rows, float* x,
            std::byte* scale_copy) const;

 private:
  const std::byte* scales_of(std::int64_t row, std::byte* copy) const;
  std::int64_t scale_index(std::int64_t row, std::int64_t s) const;

  const ExpertRows& input_;
  std::int64_t row_bytes_ = 0;
  bool has_row_scales_ = false;
  std::int64_t block_rows_ = 1;  // rows whose scales form one block
  ScaleGeometry geometry_;
};

}  // namespace switchyard
