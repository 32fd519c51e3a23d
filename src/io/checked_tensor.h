// SPDX-License-Identifier: Apache-2.0
//
// checked_tensor.h: single tensors of a checkpoint, with their shapes and dtypes checked against
// what config.json states. All shapes are checked against the file before memory is allocated, so
// a hostile config.json cannot request more than the checkpoint holds.
//
// Errors of all functions: kMalformedFile, naming tensor, file and both shapes or dtypes.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "switchyard/tensor.h"

#include "io/checkpoint.h"

namespace switchyard {

using Shape3 = std::array<std::int64_t, 3>;

/// Of e4m3 weights: a scale for each block of so many outputs and inputs, in NAME + kScaleSuffix.
inline constexpr std::int64_t kScaleBlock = 128;
inline constexpr const char* kScaleSuffix = "_scale_inv";

bool has_shape(const TensorView& view, std::span<const std::int64_t> shape);
TensorView checked_tensor(const Checkpoint& checkpoint, const std::string& name,
                          std::span<const std::int64_t> shape);
[[noreturn]] void fail_shape(const Checkpoint& checkpoint, const std::string& name,
                             const TensorView& view, std::span<const std::int64_t> shape);
[[noreturn]] void fail_dtype(const Checkpoint& checkpoint, const std::string& name,
                             const TensorView& view, const char* want);

/// bf16, f16, f32 or e4m3.
void check_expert_dtype(const Checkpoint& checkpoint, const std::string& name,
                        const TensorView& view);

/// Checkpoints store biases and scales in several dtypes; callers get f32.
void widen(const Checkpoint& checkpoint, const std::string& name, const TensorView& view,
           float* out);
/// Refuses NaN, infinities and negative numbers among elements [begin, end) of the tensor.
void check_scales(const Checkpoint& checkpoint, const std::string& name, const float* scales,
                  std::int64_t begin, std::int64_t end);

/// A tensor of bf16, f16 or f32.
Tensor load_plain(const Checkpoint& checkpoint, const std::string& name,
                  std::initializer_list<std::int64_t> shape);

/// The same, or e8m0, as f32; leading dimensions of 1 may be missing or too many in the file.
Tensor load_widened(const Checkpoint& checkpoint, const std::string& name,
                    std::initializer_list<std::int64_t> shape);

}  // namespace switchyard
