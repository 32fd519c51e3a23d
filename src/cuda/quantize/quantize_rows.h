// SPDX-License-Identifier: Apache-2.0
//
// quantize_rows.h: the row kernels that quantize.cu calls, one function per dtype of x.
#pragma once

#include "cuda/quantize/quantize.h"

namespace switchyard::cuda {

void quantize_rows_bf16(const QuantizeJob& job, Stream stream);
void quantize_rows_f16(const QuantizeJob& job, Stream stream);
void quantize_rows_f32(const QuantizeJob& job, Stream stream);

/// Writes the largest magnitude of each expert, as f32 bits, to its scale, which must be 0 before.
void max_of_experts_bf16(const QuantizeJob& job, Stream stream);
void max_of_experts_f16(const QuantizeJob& job, Stream stream);
void max_of_experts_f32(const QuantizeJob& job, Stream stream);

}  // namespace switchyard::cuda
