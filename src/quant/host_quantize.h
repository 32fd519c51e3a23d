// SPDX-License-Identifier: Apache-2.0
//
// host_quantize.h: the public quantization calls for CPUs, without the choice of a device. See
// quant.h and quantize_batched.h for what they do.
#pragma once

#include <optional>

#include "switchyard/quantize_batched.h"

namespace switchyard::host {

void quantize(const TensorView& x, const QuantScheme& scheme, const TensorView& q,
              const TensorView& scales, const TensorView& static_scale = {},
              std::optional<float> scale_ub = {});
void dequantize(const TensorView& q, const TensorView& scales, const QuantScheme& scheme,
                const TensorView& y, const TensorView& tensor_scale = {});
/// Of a batch [L, C, H]; dequantize calls it.
void dequantize_batched(const TensorView& q, const TensorView& scales, const QuantScheme& scheme,
                        const TensorView& y, const TensorView& tensor_scale);
void quantize_batched(const TensorView& x, const TensorView& counts, const QuantScheme& scheme,
                      const TensorView& q, const TensorView& scales,
                      const TensorView& static_scale = {});
void silu_mul_quantize(const TensorView& x, const QuantScheme& scheme, const TensorView& q,
                       const TensorView& scales, ActivationScale activation_scale,
                       const TensorView& tensor_scale);
void silu_mul_quantize_batched(const TensorView& x, const TensorView& counts,
                               const QuantScheme& scheme, const TensorView& q,
                               const TensorView& scales, ActivationScale activation_scale,
                               const TensorView& tensor_scale);

}  // namespace switchyard::host
