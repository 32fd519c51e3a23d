// SPDX-License-Identifier: Apache-2.0

#include "cuda/quantize/quantize_launch.cuh"

namespace switchyard::cuda {

void quantize_rows_f16(const QuantizeJob& job, Stream stream) {
  quantize_rows_of<DType::kF16>(job, stream);
}

void max_of_experts_f16(const QuantizeJob& job, Stream stream) {
  max_of_experts_of<DType::kF16>(job, stream);
}

}  // namespace switchyard::cuda
