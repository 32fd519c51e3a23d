// SPDX-License-Identifier: Apache-2.0
//
// expert_checks.h: what make_*_experts and apply require of their arguments, for every kind of
// experts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "switchyard/experts.h"

#include "cpu/weights.h"

namespace switchyard {

/// L, H and I, taken from the weights.
struct ExpertShape {
  std::int64_t num_experts = 0;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
};

/// Each matrix with its scales and alpha.
WeightTensor gate_of(const ExpertWeights& weights);
WeightTensor up_of(const ExpertWeights& weights);
WeightTensor down_of(const ExpertWeights& weights);

/// Errors: kInvalidArgument; messages start with `function`.
ExpertShape check_weights(const char* function, const ExpertWeights& weights);
void check_options(const char* function, const ExpertShape& shape, const ExpertOptions& options);

/// What experts with these options return.
inline DType output_dtype_of(const ExpertOptions& options) {
  return options.intermediate.is_quantized() ? DType::kBF16 : options.intermediate.dtype;
}

/// [L, C, H] as [L * C, H]; a matrix stays. Errors: kInvalidArgument (experts not side by side).
TensorView flat_rows(const char* name, const TensorView& tensor);

/// All tensors, and the stream, are of the experts' device. Errors: kInvalidArgument.
void require_experts_device(Device device, const ExpertRows& input, const TensorView& output,
                            Stream stream);

/// An output of `dtype`. Errors: kInvalidArgument, kWorkspaceTooSmall.
void check_apply(const ExpertShape& shape, const ExpertRows& input, const TensorView& output,
                 DType dtype, std::size_t workspace_bytes, std::size_t needed_bytes);

/// check_apply without the ranges, which the host may not know.
void check_buffers(const ExpertShape& shape, const ExpertRows& input, const TensorView& output,
                   DType dtype, std::size_t workspace_bytes, std::size_t needed_bytes);

}  // namespace switchyard
