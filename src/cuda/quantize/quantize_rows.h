// SPDX-License-Identifier: Apache-2.0
//
// quantize_rows.h: the row kernels of quantize.cu by the dtype of x.
#pragma once

#include "cuda/quantize/quantize.h"

namespace switchyard::cuda {

void quantize_rows_bf16(const QuantizeJob& job, Stream stream);
void quantize_rows_f16(const QuantizeJob& job, Stream stream);
void quantize_rows_f32(const QuantizeJob& job, Stream stream);

/// The bits of the largest magnitude of each expert into its scale, which is 0 before.
void max_of_experts_bf16(const QuantizeJob& job, Stream stream);
void max_of_experts_f16(const QuantizeJob& job, Stream stream);
void max_of_experts_f32(const QuantizeJob& job, Stream stream);

}  // namespace switchyard::cuda
