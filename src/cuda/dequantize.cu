// SPDX-License-Identifier: Apache-2.0
//
// dequantize.cu: codes times their scale, a row a thread block, eight elements a thread at a time.

#include <algorithm>

#include "core/round_up.h"
#include "cuda/check.h"
#include "cuda/quantize.h"
#include "cuda/rows.cuh"
#include "quant/scalar.h"

namespace switchyard {
namespace {

constexpr unsigned kMaxThreads = 256;

// A stored scale as a number.
__device__ __forceinline__ float scale_value(ScaleFormat format, std::uint32_t bits) {
  if (format == ScaleFormat::kE8M0Packed || format == ScaleFormat::kE8M0) {
    return f32_from_e8m0(static_cast<std::uint8_t>(bits));
  }
  if (format != ScaleFormat::kE4M3) return f32_from_bits(bits);
  float values[4];
  decode4(DType::kE4M3, bits, values);
  return values[0];
}

// Scales of a row. kBlock is that of the named schemes, or 0 for any.
template <int kBlock>
struct ScalesOfRow {
  const DequantizeJob& job;
  DequantizeJob::ScaleRow at;
  float inverse;  // of the global scale, or 1
  bool is_two_level;
  bool is_block;
  static constexpr bool kIsUnit = kBlock > 0;  // a unit of a row has one scale

  __device__ __forceinline__ ScalesOfRow(const DequantizeJob& of, DequantizeJob::ScaleRow where,
                                         const float* tensor_scale)
      : job(of),
        at(where),
        inverse(of.scheme.rule == ScaleRule::kTwoLevel ? 1.0f / *tensor_scale : 1.0f),
        is_two_level(of.scheme.rule == ScaleRule::kTwoLevel),
        is_block(of.scheme.group == ScaleGroup::kBlock) {}

  // The bits of the scale of element h.
  __device__ __forceinline__ std::uint32_t fetch(std::int64_t h) const {
    const std::int64_t b = is_block ? h / (kIsUnit ? kBlock : job.scheme.block) : 0;
    const ScaleMemory& from = job.scales;
    switch (job.scheme.scale_format) {
      case ScaleFormat::kE8M0Packed:
        return static_cast<std::uint32_t>(from.data[4 * index(b / 4) + b % 4]);
      case ScaleFormat::kE8M0:
      case ScaleFormat::kE4M3: return static_cast<std::uint32_t>(from.data[index(b)]);
      default: return reinterpret_cast<const std::uint32_t*>(from.data)[index(b)];
    }
  }

  __device__ __forceinline__ std::int64_t index(std::int64_t s) const {
    return job.scales.index(at.block, at.row, s);
  }

  __device__ __forceinline__ float value(std::uint32_t bits) const {
    const float stored = scale_value(job.scheme.scale_format, bits);
    return is_two_level ? stored * inverse : stored;
  }

  // `bits` is of element h; others are fetched where a unit may have more than one scale.
  __device__ __forceinline__ void multiply(std::int64_t h, std::uint32_t bits, float* y) const {
    if (kIsUnit || !is_block) {
      const float scale = value(bits);
#pragma unroll
      for (int i = 0; i < kUnit; ++i) y[i] *= scale;
    } else {
      for (int i = 0; i < kUnit && h + i < job.hidden; ++i) y[i] *= value(fetch(h + i));
    }
  }
};

template <DType kCode, int kBlock, DType kOutput>
__device__ __forceinline__ void dequantize_row(const DequantizeJob& job, std::int64_t n,
                                               const ScalesOfRow<kBlock>& scales) {
  constexpr int kWords = kCode == DType::kE2M1 ? 1 : 2;
  constexpr int kCodesOfByte = kCode == DType::kE2M1 ? 2 : 1;
  const std::byte* codes = job.q + n * job.q_row_bytes;
  auto* row = static_cast<ElementBits<kOutput>*>(job.y.data) + n * job.y.row_stride;
  const bool is_even = job.hidden % kUnit == 0;
  const bool is_wide_from = is_even && is_aligned<4 * kWords>(codes);
  const bool is_wide_to = is_even && is_aligned<16>(row);
  for (std::int64_t base = 0; base < job.hidden; base += elements_of_block()) {
    std::uint32_t words[kUnits][kWords];
    std::uint32_t scale_bits[kUnits];
    for_each_unit(base, [&](int u, std::int64_t h) {
      load_words<kWords>(codes + h / kCodesOfByte, (job.hidden - h) / kCodesOfByte, is_wide_from,
                         words[u]);
      scale_bits[u] = h < job.hidden ? scales.fetch(h) : 0;
    });
    for_each_unit(base, [&](int u, std::int64_t h) {
      if (h >= job.hidden) return;
      float y[kUnit];
      if constexpr (kCode == DType::kE2M1) {
        decode8_e2m1(words[u][0], y);
      } else {
        decode4(kCode, words[u][0], y);
        decode4(kCode, words[u][1], y + 4);
      }
      scales.multiply(h, scale_bits[u], y);
      store_unit<kOutput>(y, job.hidden - h, is_wide_to, row + h);
    });
  }
}

template <DType kCode, int kBlock, DType kOutput>
__global__ void __launch_bounds__(kMaxThreads)
    dequantize_rows_kernel(const __grid_constant__ DequantizeJob job) {
  for (std::int64_t n = blockIdx.x; n < job.ranges.capacity; n += gridDim.x) {
    dequantize_row<kCode, kBlock, kOutput>(job, n,
                                           ScalesOfRow<kBlock>(job, {0, n}, job.tensor_scale));
  }
}

// A kernel of its own: what counts and blocks of scales need costs the other a sixth of its speed.
template <DType kCode, int kBlock, DType kOutput>
__global__ void __launch_bounds__(kMaxThreads)
    dequantize_expert_rows_kernel(const __grid_constant__ DequantizeJob job) {
  for_each_row_of(job.ranges, [&](std::int64_t e, std::int64_t n) {
    const float* tensor_scale = job.tensor_scale + e * job.tensor_scale_stride;
    dequantize_row<kCode, kBlock, kOutput>(
        job, n, ScalesOfRow<kBlock>(job, job.scale_row(e, n), tensor_scale));
  });
}

// Rows without scales, of experts: few models have such rows, so element by element.
__global__ void __launch_bounds__(kMaxThreads)
    convert_rows_kernel(const __grid_constant__ DequantizeJob job) {
  for_each_row_of(job.ranges, [&](std::int64_t, std::int64_t n) {
    const std::byte* from = job.q + n * job.q_row_bytes;
    for (std::int64_t h = threadIdx.x; h < job.hidden; h += blockDim.x) {
      scalar::store(job.y.data, job.y.dtype, n * job.y.row_stride + h,
                    scalar::load(from, job.stored, h));
    }
  });
}

void launch(void (*kernel)(DequantizeJob), const DequantizeJob& job, Stream stream) {
  const std::int64_t units = cdiv<std::int64_t>(job.hidden, kUnit * kUnits);
  const auto threads =
      static_cast<unsigned>(std::min<std::int64_t>(align_up<std::int64_t>(units, 32), kMaxThreads));
  const RowBlocks blocks = blocks_of(job.ranges);
  kernel<<<dim3(blocks.rows, blocks.experts), threads, 0, stream.get()>>>(job);
  check_launch("dequantize");
}

template <DType kCode, int kBlock>
void launch_output(const DequantizeJob& job, Stream stream) {
  const bool is_of_experts = job.ranges.num_rows != nullptr;
  switch (job.y.dtype) {
    case DType::kBF16:
      return is_of_experts
                 ? launch(dequantize_expert_rows_kernel<kCode, kBlock, DType::kBF16>, job, stream)
                 : launch(dequantize_rows_kernel<kCode, kBlock, DType::kBF16>, job, stream);
    case DType::kF16:
      return launch(dequantize_rows_kernel<kCode, kBlock, DType::kF16>, job, stream);
    default:
      return is_of_experts
                 ? launch(dequantize_expert_rows_kernel<kCode, kBlock, DType::kF32>, job, stream)
                 : launch(dequantize_rows_kernel<kCode, kBlock, DType::kF32>, job, stream);
  }
}

template <DType kCode>
void launch_bytes(const DequantizeJob& job, Stream stream) {
  if (job.scheme.block == 128) return launch_output<kCode, 128>(job, stream);
  if (kCode == DType::kE4M3 && job.scheme.block == 32) {
    return launch_output<DType::kE4M3, 32>(job, stream);
  }
  launch_output<kCode, 0>(job, stream);
}

// Rows without scales are converted, which is what quantize does with those of a matrix.
void convert(const DequantizeJob& job, Stream stream) {
  if (job.ranges.num_rows != nullptr) return launch(convert_rows_kernel, job, stream);
  QuantizeJob conversion;
  conversion.scheme = QuantScheme{job.y.dtype};
  conversion.x = {const_cast<std::byte*>(job.q), job.stored, 0, job.hidden};
  conversion.q = static_cast<std::byte*>(job.y.data);
  conversion.q_row_bytes = job.y.row_stride * (job.y.dtype == DType::kF32 ? 4 : 2);
  conversion.capacity = job.ranges.capacity;
  conversion.hidden = job.hidden;
  launch_quantize(conversion, stream);
}

}  // namespace

void launch_dequantize(const DequantizeJob& job, Stream stream) {
  if (job.ranges.capacity == 0 || job.ranges.num_experts == 0 || job.hidden == 0) return;
  if (!job.scheme.is_quantized() || job.scheme.is_simulated()) return convert(job, stream);
  switch (job.scheme.dtype) {
    case DType::kI8: return launch_bytes<DType::kI8>(job, stream);
    case DType::kE2M1:
      return job.scheme.block == 16 ? launch_output<DType::kE2M1, 16>(job, stream)
                                    : launch_output<DType::kE2M1, 32>(job, stream);
    default: return launch_bytes<DType::kE4M3>(job, stream);
  }
}

}  // namespace switchyard
