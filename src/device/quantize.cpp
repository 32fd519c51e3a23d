// SPDX-License-Identifier: Apache-2.0
//
// quantize.cpp: the public quantization calls. On the host they run at once; for a GPU the same
// checks are made, then a job of plain values goes to the module.

#include "cuda/quantize/quantize.h"

#include "switchyard/quantize_batched.h"

#include "core/require_device.h"
#include "device/cuda_module.h"
#include "device/scale_memory.h"
#include "quant/host_quantize.h"
#include "quant/quantize_checks.h"
#include "quant/scheme.h"

namespace switchyard {
namespace {

// Of a call without experts: rows and columns, or the one scale of a tensor.
cuda::ScaleMemory matrix_memory_of(const TensorView& scales, const QuantScheme& scheme) {
  if (!stores_scales(scheme)) return {};
  if (scheme.group != ScaleGroup::kTensor) return memory_of(scales);
  cuda::ScaleMemory memory;
  memory.data = scales.as<std::byte>();
  return memory;
}

cuda::QuantizeJob job_of(const BatchRows& rows, const QuantScheme& scheme, const TensorView& q,
                         std::int64_t hidden) {
  cuda::QuantizeJob job;
  job.scheme = scheme;
  const int rows_dim = rows.x.num_dims() - 2;
  job.x = {rows.x.data(), rows.x.dtype(), rows_dim == 1 ? rows.x.stride(0) : 0,
           rows.x.stride(rows_dim)};
  job.q = q.as<std::byte>();
  job.q_row_bytes = static_cast<std::int64_t>(row_bytes(scheme, hidden, rows.x.dtype()));
  job.num_scales = num_scales(scheme, hidden);
  job.num_experts = rows.num_experts;
  job.capacity = rows.capacity;
  job.hidden = hidden;
  job.counts = rows.counts;
  return job;
}

cuda::DequantizeJob job_of(const TensorView& q, const QuantScheme& scheme, const TensorView& y,
                           std::int64_t hidden, const TensorView& tensor_scale) {
  cuda::DequantizeJob job;
  job.scheme = scheme;
  job.stored = q.dtype();
  job.q = q.as<std::byte>();
  job.q_row_bytes = static_cast<std::int64_t>(row_bytes(scheme, hidden, q.dtype()));
  job.tensor_scale = tensor_scale.as<float>();
  job.y = {y.data(), y.dtype(), 0, y.stride(y.num_dims() - 2)};
  job.hidden = hidden;
  return job;
}

// Whether a batch's rows, all with the same scale or with scales at the same distance, are those of
// one matrix, for which the kernels are faster.
bool is_flat(const BatchRows& rows, const TensorView& scales, const QuantScheme& scheme,
             const TensorView& tensor_scale) {
  if (scheme.needs_tensor_scale() && tensor_scale.num_elements() > 1) return false;
  if (!stores_scales(scheme) || rows.num_experts <= 1) return true;
  if (scheme.group == ScaleGroup::kTensor) return scales.num_elements() == 1;
  return scales.num_dims() == 3 && scales.stride(0) == rows.capacity * scales.stride(1);
}

void dequantize_batched(const TensorView& q, const TensorView& scales, const QuantScheme& scheme,
                        const TensorView& y, Stream stream, const TensorView& tensor_scale) {
  const BatchRows rows = check_dequantize_batched(q, scales, scheme, y, tensor_scale);
  cuda::DequantizeJob job = job_of(q, scheme, y, rows.hidden, tensor_scale);
  const std::int64_t num_rows = rows.num_experts * rows.capacity;
  const bool is_one_matrix = is_flat(rows, scales, scheme, tensor_scale);
  if (stores_scales(scheme) && scales.num_elements() == 1) {
    job.scales.data = scales.as<std::byte>();
  } else if (stores_scales(scheme)) {
    job.scales = memory_of(scales);
  }
  job.scale_block_rows = is_one_matrix ? 0 : rows.capacity;
  job.tensor_scale_stride = tensor_scale.num_elements() > 1 ? 1 : 0;
  job.ranges.num_experts = is_one_matrix ? 1 : rows.num_experts;
  job.ranges.capacity = is_one_matrix ? num_rows : rows.capacity;
  job.ranges.total_rows = num_rows;
  cuda_module().dequantize(job, stream);
}

void activate_and_quantize(const char* name, const BatchRows& rows, const QuantScheme& scheme,
                           const TensorView& q, const TensorView& scales, Stream stream,
                           ActivationScale activation_scale, const TensorView& tensor_scale) {
  check_silu_mul_quantize(name, rows, scheme, q, scales, activation_scale, tensor_scale);
  cuda::QuantizeJob job = job_of(rows, scheme, q, rows.hidden / 2);
  job.scales = memory_of(scales);
  job.given = tensor_scale.as<float>();
  job.is_activated = true;
  job.is_fused = activation_scale == ActivationScale::kFused;
  cuda_module().quantize(job, stream);
}

}  // namespace

void quantize(const TensorView& x, const QuantScheme& scheme, const TensorView& q,
              const TensorView& scales, Stream stream, const TensorView& static_scale,
              std::optional<float> scale_ub) {
  require_device("quantize", stream.device(),
                 {{"x", x}, {"q", q}, {"scales", scales}, {"static_scale", static_scale}});
  if (stream.device().is_cpu()) return host::quantize(x, scheme, q, scales, static_scale, scale_ub);
  const QuantRows rows = check_quantize(x, scheme, q, scales, static_scale, scale_ub);
  cuda::QuantizeJob job = job_of({x, 1, rows.num_rows, rows.hidden}, scheme, q, rows.hidden);
  job.scales = matrix_memory_of(scales, scheme);
  job.given = static_scale.as<float>();
  if (is_fp8_token(scheme) && static_scale.has_value()) {
    job.given_row_stride = static_scale.stride(0);
  }
  job.scale_ub = scale_ub.value_or(job.scale_ub);
  cuda_module().quantize(job, stream);
}

void dequantize(const TensorView& q, const TensorView& scales, const QuantScheme& scheme,
                const TensorView& y, Stream stream, const TensorView& tensor_scale) {
  require_device("dequantize", stream.device(),
                 {{"q", q}, {"scales", scales}, {"y", y}, {"tensor_scale", tensor_scale}});
  if (stream.device().is_cpu()) return host::dequantize(q, scales, scheme, y, tensor_scale);
  if (y.num_dims() == 3) return dequantize_batched(q, scales, scheme, y, stream, tensor_scale);
  const QuantRows rows = check_dequantize(q, scales, scheme, y, tensor_scale);
  cuda::DequantizeJob job = job_of(q, scheme, y, rows.hidden, tensor_scale);
  job.scales = matrix_memory_of(scales, scheme);
  job.ranges.capacity = rows.num_rows;
  job.ranges.total_rows = rows.num_rows;
  cuda_module().dequantize(job, stream);
}

void quantize_batched(const TensorView& x, const TensorView& counts, const QuantScheme& scheme,
                      const TensorView& q, const TensorView& scales, Stream stream,
                      const TensorView& static_scale) {
  require_device(
      "quantize_batched", stream.device(),
      {{"x", x}, {"counts", counts}, {"q", q}, {"scales", scales}, {"static_scale", static_scale}});
  if (stream.device().is_cpu()) {
    return host::quantize_batched(x, counts, scheme, q, scales, static_scale);
  }
  const BatchRows rows = check_quantize_batched(x, counts, scheme, q, scales, static_scale);
  cuda::QuantizeJob job = job_of(rows, scheme, q, rows.hidden);
  if (stores_scales(scheme)) job.scales = memory_of(scales);
  job.given = static_scale.as<float>();
  job.given_expert_stride = static_scale.num_elements() == 1 ? 0 : 1;
  cuda_module().quantize(job, stream);
}

void silu_mul_quantize(const TensorView& x, const QuantScheme& scheme, const TensorView& q,
                       const TensorView& scales, Stream stream, ActivationScale activation_scale,
                       const TensorView& tensor_scale) {
  constexpr const char* kName = "silu_mul_quantize";
  require_device(kName, stream.device(),
                 {{"x", x}, {"q", q}, {"scales", scales}, {"tensor_scale", tensor_scale}});
  if (stream.device().is_cpu()) {
    return host::silu_mul_quantize(x, scheme, q, scales, activation_scale, tensor_scale);
  }
  activate_and_quantize(kName, check_matrix_rows(kName, x), scheme, q, scales, stream,
                        activation_scale, tensor_scale);
}

void silu_mul_quantize_batched(const TensorView& x, const TensorView& counts,
                               const QuantScheme& scheme, const TensorView& q,
                               const TensorView& scales, Stream stream,
                               ActivationScale activation_scale, const TensorView& tensor_scale) {
  constexpr const char* kName = "silu_mul_quantize_batched";
  require_device(
      kName, stream.device(),
      {{"x", x}, {"counts", counts}, {"q", q}, {"scales", scales}, {"tensor_scale", tensor_scale}});
  if (stream.device().is_cpu()) {
    return host::silu_mul_quantize_batched(x, counts, scheme, q, scales, activation_scale,
                                           tensor_scale);
  }
  activate_and_quantize(kName, check_batch_rows(kName, x, counts), scheme, q, scales, stream,
                        activation_scale, tensor_scale);
}

}  // namespace switchyard
