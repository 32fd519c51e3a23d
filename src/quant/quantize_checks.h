// SPDX-License-Identifier: Apache-2.0
//
// quantize_checks.h: checks of the quantization calls, for both processors. Only check_global_value
// reads tensor contents. Errors: kInvalidArgument.
#pragma once

#include <cstdint>
#include <optional>

#include "switchyard/quantize_batched.h"

#include "quant/batch_rows.h"

namespace switchyard {

struct QuantRows {
  std::int64_t num_rows;
  std::int64_t hidden;
};

/// Whether scales are written and read: not for unquantized or simulated elements.
bool stores_scales(const QuantScheme& scheme);

/// Whether token scales may be given or bounded.
bool is_fp8_token(const QuantScheme& scheme);

QuantRows check_quantize(const TensorView& x, const QuantScheme& scheme, const TensorView& q,
                         const TensorView& scales, const TensorView& static_scale,
                         std::optional<float> scale_ub);

QuantRows check_dequantize(const TensorView& q, const TensorView& scales, const QuantScheme& scheme,
                           const TensorView& y, const TensorView& tensor_scale);

/// The same for a batch [L, C, H].
BatchRows check_dequantize_batched(const TensorView& q, const TensorView& scales,
                                   const QuantScheme& scheme, const TensorView& y,
                                   const TensorView& tensor_scale);

/// The global scale of nvfp4, which is read and must be positive; 1 for other schemes.
float check_global_value(const char* function, const char* name, const TensorView& scale,
                         const QuantScheme& scheme);

/// A scale that is an option, not data: positive and finite.
void check_scale_value(const char* function, const char* name, float value);

BatchRows check_quantize_batched(const TensorView& x, const TensorView& counts,
                                 const QuantScheme& scheme, const TensorView& q,
                                 const TensorView& scales, const TensorView& static_scale);

/// For both silu_mul_quantize functions; `function` is the one called.
void check_silu_mul_quantize(const char* function, const BatchRows& rows, const QuantScheme& scheme,
                             const TensorView& q, const TensorView& scales,
                             ActivationScale activation_scale, const TensorView& tensor_scale);

}  // namespace switchyard
