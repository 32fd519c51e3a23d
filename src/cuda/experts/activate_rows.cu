// SPDX-License-Identifier: Apache-2.0
//
// activate_rows.cu: what happens between the two products of an expert, one thread block per row.
// The activation is computed where it is needed, twice if a scale must be known first: exp costs
// less than storing its results. Rounding follows the definitions, so every scheme is supported.

#include <algorithm>

#include "cuda/base/check.h"
#include "cuda/experts/expert_kernels.h"
#include "cuda/quantize/rows.cuh"
#include "quant/scalar.h"

namespace switchyard::cuda {
namespace {

constexpr unsigned kThreads = 256;

// The activations of one row.
struct ActivatedRow {
  const ActivationJob& job;
  std::int64_t expert;
  std::int64_t row;

  __device__ __forceinline__ float input(std::int64_t column, const float* bias,
                                         std::int64_t i) const {
    const float sum = job.gate_up[row * job.gate_up_stride + column];
    return bias == nullptr ? sum : sum + bias[expert * job.width + i];
  }
  __device__ __forceinline__ float at(std::int64_t i) const {
    const float gate = input(i, job.gate_bias, i);
    const float up = input(job.gate_up_stride / 2 + i, job.up_bias, i);
    const Activation& a = job.activation;
    if (a.kind == ActivationKind::kSiluMul) return silu_mul(gate, up);
    return clamped_swiglu(gate, up, a.alpha, a.beta, a.limit);
  }
  __device__ __forceinline__ void store(std::int64_t i, float value) const {
    scalar::store(job.y, job.y_dtype, row * job.width + i, value);
  }

  // The largest magnitude among the elements of this lane, one of `step`, in [begin, end).
  __device__ __forceinline__ float amax(std::int64_t begin, std::int64_t end, unsigned step) const {
    float largest = 0.0f;
    for (std::int64_t i = begin + threadIdx.x % step; i < end; i += step) {
      largest = max_magnitude(largest, at(i));
    }
    return largest;
  }
  __device__ __forceinline__ void round(std::int64_t begin, std::int64_t end, unsigned step,
                                        const ScaleAndMap& rule, float tensor_scale) const {
    const QuantScheme& scheme = job.scheme;
    float scale = rule.scale;
    if (!job.is_simulated && scheme.group != ScaleGroup::kTensor) {
      float stored = 0.0f;  // wide enough for every format
      scalar::store_scale(scheme.scale_format, &stored, 0, scale);
      scale = effective_scale(scheme, scalar::load_scale(scheme.scale_format, &stored, 0),
                              tensor_scale);
    }
    for (std::int64_t i = begin + threadIdx.x % step; i < end; i += step) {
      store(i, decode(scheme.dtype, quantize_element(at(i), rule.map)) * scale);
    }
  }
};

__device__ __forceinline__ float scale_of_expert(const ActivationJob& job, std::int64_t e) {
  if (job.scale != nullptr) return job.scale[e];
  return job.amax == nullptr ? 1.0f : tensor_scale(job.amax[e], job.scheme.dtype);
}

__device__ __forceinline__ void round_row(const ActivatedRow& row) {
  const ActivationJob& job = row.job;
  const QuantScheme& scheme = job.scheme;
  if (scheme.group == ScaleGroup::kNone) {
    for (std::int64_t i = threadIdx.x; i < job.width; i += blockDim.x) row.store(i, row.at(i));
    return;
  }
  const float given = scale_of_expert(job, row.expert);
  if (scheme.group != ScaleGroup::kBlock) {
    float amax = 0.0f;
    if (scheme.group == ScaleGroup::kToken) amax = max_of_block(row.amax(0, job.width, blockDim.x));
    row.round(0, job.width, blockDim.x, scale_rule(scheme, amax, given), given);
    __syncthreads();  // before the next row uses max_of_block
    return;
  }
  const std::int64_t block = scheme.block;
  for (std::int64_t begin = threadIdx.x / 32 * block; begin < job.width;
       begin += blockDim.x / 32 * block) {
    const std::int64_t end = job.width - begin < block ? job.width : begin + block;
    const float amax = max_of_lanes<32>(row.amax(begin, end, 32));
    row.round(begin, end, 32, scale_rule(scheme, amax, given), given);
  }
}

__global__ void __launch_bounds__(kThreads)
    activate_rows_kernel(const __grid_constant__ ActivationJob job) {
  for_each_row_of(job.ranges, [&](std::int64_t e, std::int64_t n) {
    round_row(ActivatedRow{job, e, n});
  });
}

// The largest magnitude of each expert's rows; amax must be 0 before. The bits of a positive f32
// order as the f32 does.
__global__ void __launch_bounds__(kThreads)
    max_of_activations_kernel(const __grid_constant__ ActivationJob job) {
  for_each_row_of(job.ranges, [&](std::int64_t e, std::int64_t n) {
    const float amax = max_of_block(ActivatedRow{job, e, n}.amax(0, job.width, blockDim.x));
    if (threadIdx.x == 0) {
      atomicMax(reinterpret_cast<int*>(job.amax) + e, static_cast<int>(bits_from_f32(amax)));
    }
    __syncthreads();
  });
}

__global__ void __launch_bounds__(kThreads) fill_bias_kernel(const __grid_constant__ BiasJob job) {
  for_each_row_of(job.ranges, [&](std::int64_t e, std::int64_t n) {
    for (std::int64_t i = threadIdx.x; i < job.width; i += blockDim.x) {
      job.y[n * job.y_stride + i] = bf16_from_f32(job.bias[e * job.width + i]);
    }
  });
}

template <typename Job>
void launch(void (*kernel)(Job), const Job& job, Stream stream) {
  const RowBlocks blocks = blocks_of(job.ranges);
  if (blocks.rows == 0 || blocks.experts == 0) return;
  kernel<<<dim3(blocks.rows, blocks.experts), kThreads, 0, stream.get()>>>(job);
  check_launch("experts");
}

}  // namespace

void launch_activation(const ActivationJob& job, Stream stream) {
  if (job.amax != nullptr) {
    const auto bytes = static_cast<std::size_t>(job.ranges.num_experts) * sizeof(float);
    check_cuda(cudaMemsetAsync(job.amax, 0, bytes, stream.get()), "experts");
    launch(max_of_activations_kernel, job, stream);
  }
  launch(activate_rows_kernel, job, stream);
}

void launch_fill_bias(const BiasJob& job, Stream stream) { launch(fill_bias_kernel, job, stream); }

}  // namespace switchyard::cuda
