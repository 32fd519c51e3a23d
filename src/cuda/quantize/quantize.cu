// SPDX-License-Identifier: Apache-2.0
//
// quantize.cu: orders the launches: tensor scales before rows, cleared padding before scales. Rows
// whose dtype does not change are copied.

#include <algorithm>

#include "core/round_up.h"
#include "cuda/base/check.h"
#include "cuda/base/launch.h"
#include "cuda/base/ptx.cuh"
#include "cuda/quantize/quantize.h"
#include "cuda/quantize/quantize_rows.h"
#include "cuda/quantize/rows.cuh"

namespace switchyard::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void clear_tensor_scales_kernel(const __grid_constant__ QuantizeJob job) {
  follow_kernel();
  const std::int64_t e = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (e < job.num_experts) {
    reinterpret_cast<float*>(job.scales.data)[job.scales.index(e, 0, 0)] = 0.0f;
  }
}

// Turns the largest magnitude into a scale, or stores the given one. 0 for an expert without rows.
__global__ void finish_tensor_scales_kernel(const __grid_constant__ QuantizeJob job) {
  follow_kernel();
  const std::int64_t e = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (e >= job.num_experts) return;
  float& scale = reinterpret_cast<float*>(job.scales.data)[job.scales.index(e, 0, 0)];
  if (job.counts != nullptr && job.num_rows(e) == 0) {
    scale = 0.0f;
  } else {
    scale = job.given != nullptr ? job.given[e * job.given_expert_stride]
                                 : tensor_scale(scale, job.scheme.dtype);
  }
}

// Copies bytes, 16 at a time if both addresses allow it.
__global__ void __launch_bounds__(kThreads)
    copy_rows_kernel(const __grid_constant__ QuantizeJob job, std::int64_t element_bytes) {
  const std::int64_t num_bytes = job.hidden * element_bytes;
  for_each_row(job.num_experts, job.capacity, [&](std::int64_t e, std::int64_t n) {
    if (n >= job.num_rows(e)) return;
    const auto* from = static_cast<const std::byte*>(job.x.data) +
                       (e * job.x.expert_stride + n * job.x.row_stride) * element_bytes;
    std::byte* to = job.q + (e * job.capacity + n) * job.q_row_bytes;
    const bool is_wide = is_aligned<16>(from) && is_aligned<16>(to);
    const std::int64_t num_wide = is_wide ? num_bytes / 16 : 0;
#pragma unroll 4
    for (std::int64_t i = threadIdx.x; i < num_wide; i += blockDim.x) {
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
    }
    for (std::int64_t i = 16 * num_wide + threadIdx.x; i < num_bytes; i += blockDim.x) {
      to[i] = from[i];
    }
  });
}

void quantize_rows(const QuantizeJob& job, Stream stream) {
  switch (job.x.dtype) {
    case DType::kBF16: return quantize_rows_bf16(job, stream);
    case DType::kF16: return quantize_rows_f16(job, stream);
    default: return quantize_rows_f32(job, stream);
  }
}

void max_of_experts(const QuantizeJob& job, Stream stream) {
  switch (job.x.dtype) {
    case DType::kBF16: return max_of_experts_bf16(job, stream);
    case DType::kF16: return max_of_experts_f16(job, stream);
    default: return max_of_experts_f32(job, stream);
  }
}

void copy_rows(const QuantizeJob& job, Stream stream) {
  if (job.num_experts == 0 || job.capacity == 0) return;
  const dim3 grid(static_cast<unsigned>(std::min<std::int64_t>(job.capacity, 0x7FFFFFFF)),
                  static_cast<unsigned>(std::min<std::int64_t>(job.num_experts, 65535)));
  const std::int64_t element_bytes = job.x.dtype == DType::kF32 ? 4 : 2;
  copy_rows_kernel<<<grid, kThreads, 0, stream.get()>>>(job, element_bytes);
  check_launch("quantize");
}

// The scales that `to` describes, given or of the rows that `from` does.
void find_tensor_scales(const QuantizeJob& from, const QuantizeJob& to, Stream stream) {
  const auto blocks = static_cast<unsigned>(cdiv<std::int64_t>(to.num_experts, kThreads));
  if (from.given == nullptr) {
    clear_tensor_scales_kernel<<<blocks, kThreads, 0, stream.get()>>>(to);
    check_launch("quantize");
    max_of_experts(from, stream);
  }
  const LaunchShape shape{static_cast<int>(blocks), kThreads, 0, has_programmatic_launch(),
                          stream.get()};
  launch_kernel(finish_tensor_scales_kernel, shape, "quantize", to);
}

// Computes the scales of all experts in the job's memory, and returns a job that reads them there.
QuantizeJob with_tensor_scales(QuantizeJob job, Stream stream) {
  if (job.scales.data == nullptr || job.num_experts == 0) return job;
  find_tensor_scales(job, job, stream);
  job.given = reinterpret_cast<const float*>(job.scales.data);
  job.given_expert_stride = job.scales.expert_stride;
  return job;
}

void clear_tiles(const QuantizeJob& job, Stream stream) {
  if (job.scales.padded_scales == 0 || job.num_experts == 0) return;
  const auto bytes = static_cast<std::size_t>(job.num_experts * job.scales.expert_stride);
  check_cuda(cudaMemsetAsync(job.scales.data, 0, bytes, stream.get()), "quantize");
}

}  // namespace

void launch_tensor_scale(const QuantizeJob& job, Stream stream) {
  QuantizeJob one = job;  // whose rows always count: the scale of no rows is that of zeros
  one.num_experts = 1;
  one.counts = nullptr;
  find_tensor_scales(job, one, stream);
}

void launch_quantize(const QuantizeJob& job, Stream stream) {
  if (!job.scheme.is_quantized() && job.scheme.dtype == job.x.dtype && !job.is_activated) {
    return copy_rows(job, stream);
  }
  if (job.scheme.group == ScaleGroup::kTensor) {
    return quantize_rows(with_tensor_scales(job, stream), stream);
  }
  clear_tiles(job, stream);
  quantize_rows(job, stream);
}

}  // namespace switchyard::cuda
