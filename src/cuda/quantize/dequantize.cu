// SPDX-License-Identifier: Apache-2.0
//
// dequantize.cu: codes times their scale; one thread block per row, eight elements at a time.

#include <algorithm>

#include "core/round_up.h"
#include "cuda/base/check.h"
#include "cuda/permute/row_grid.h"
#include "cuda/quantize/quantize.h"
#include "cuda/quantize/rows.cuh"
#include "quant/scalar.h"

namespace switchyard::cuda {
namespace {

constexpr unsigned kMaxThreads = 512;

// The value of a stored scale.
__device__ __forceinline__ float scale_value(ScaleFormat format, std::uint32_t bits) {
  if (format == ScaleFormat::kE8M0Packed || format == ScaleFormat::kE8M0) {
    return f32_from_e8m0(static_cast<std::uint8_t>(bits));
  }
  if (format != ScaleFormat::kE4M3) return f32_from_bits(bits);
  float values[4];
  decode4(DType::kE4M3, bits, values);
  return values[0];
}

// The scales of a row. kBlock is the block size of a named scheme, or 0 for any other.
template <int kBlock>
struct ScalesOfRow {
  const DequantizeJob& job;
  DequantizeJob::ScaleRow at;
  float inverse;  // 1 / the global scale, or 1
  bool is_two_level;
  bool is_block;
  static constexpr bool kIsUnit = kBlock > 0;  // all elements of a unit share one scale

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

  // `bits` belongs to element h; if a unit may have several scales, the others are fetched here.
  __device__ __forceinline__ void multiply(std::int64_t h, std::uint32_t bits, float* y) const {
    if (kIsUnit || !is_block) {
      const float scale = value(bits);
#pragma unroll
      for (int i = 0; i < kUnit; ++i) y[i] *= scale;
    } else {
      float copy[kUnit];  // so that `y` stays in registers
#pragma unroll
      for (int i = 0; i < kUnit; ++i) copy[i] = y[i];
      multiply_each(h, copy);
#pragma unroll
      for (int i = 0; i < kUnit; ++i) y[i] = copy[i];
    }
  }

 private:
  // Out of line: blocks of other sizes are rare, and this would be most of the kernel.
  __device__ __noinline__ void multiply_each(std::int64_t h, float* y) const {
#pragma unroll 1
    for (int i = 0; i < kUnit && h + i < job.hidden; ++i) y[i] *= value(fetch(h + i));
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
      load_unit_words<kWords>(codes + h / kCodesOfByte, (job.hidden - h) / kCodesOfByte,
                              is_wide_from, words[u]);
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

// A separate kernel: support for counts and scale blocks would slow the other by a sixth.
template <DType kCode, int kBlock, DType kOutput>
__global__ void __launch_bounds__(kMaxThreads)
    dequantize_expert_rows_kernel(const __grid_constant__ DequantizeJob job) {
  for_each_row_of(job.ranges, [&](std::int64_t e, std::int64_t n) {
    const float* tensor_scale = job.tensor_scale + e * job.tensor_scale_stride;
    dequantize_row<kCode, kBlock, kOutput>(
        job, n, ScalesOfRow<kBlock>(job, job.scale_row(e, n), tensor_scale));
  });
}

// Rows of experts without scales. Few models have them, so this works element by element.
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

// The bits of the scale of element h of row n, for the named schemes. kBlock 0: one scale per row
// or per tensor.
template <int kBlock>
__device__ __forceinline__ std::uint32_t fetch_scale(const DequantizeJob& job, std::int64_t n,
                                                     std::int64_t h) {
  const ScaleMemory& from = job.scales;
  if constexpr (kBlock == 16 || kBlock == 32) {
    return static_cast<std::uint32_t>(from.data[from.index(0, n, h / kBlock)]);
  } else if constexpr (kBlock == 128) {
    if (job.scheme.scale_format == ScaleFormat::kE8M0Packed) {
      return static_cast<std::uint32_t>(
          from.data[4 * from.index(0, n, h / (4 * kBlock)) + h / kBlock % 4]);
    }
    return reinterpret_cast<const std::uint32_t*>(from.data)[from.index(0, n, h / kBlock)];
  } else {
    return reinterpret_cast<const std::uint32_t*>(from.data)[from.index(0, n, 0)];
  }
}

template <int kBlock>
__device__ __forceinline__ float wide_scale(const DequantizeJob& job, std::uint32_t bits,
                                            float inverse) {
  if constexpr (kBlock == 16) return scale_value(ScaleFormat::kE4M3, bits) * inverse;
  if constexpr (kBlock == 32) return scale_value(ScaleFormat::kE8M0, bits);
  return scale_value(job.scheme.scale_format, bits);
}

__device__ __forceinline__ bool has_e4m3_nan(std::uint32_t codes) {
  return (((codes & 0x7F7F7F7Fu) + 0x01010101u) & 0x80808080u) != 0;
}

// Replaces every NaN in four words of elements by the library's canonical NaN.
template <DType kOutput>
__device__ __forceinline__ void make_canonical(std::uint32_t (&words)[4]) {
  constexpr std::uint32_t kInfinity = kOutput == DType::kBF16 ? 0x7F80u : 0x7C00u;
  constexpr std::uint32_t kNaN = kOutput == DType::kBF16 ? 0x7FC0u : 0x7E00u;
#pragma unroll
  for (int w = 0; w < 4; ++w) {
    if constexpr (kOutput == DType::kF32) {
      words[w] = bits_from_f32(canonical_f32(f32_from_bits(words[w])));
    } else {
      if ((words[w] & 0x7FFFu) > kInfinity) words[w] = (words[w] & 0xFFFF0000u) | kNaN;
      if ((words[w] >> 16 & 0x7FFFu) > kInfinity) words[w] = (words[w] & 0xFFFFu) | kNaN << 16;
    }
  }
}

// Elements that a thread stores at once: 16 bytes of output.
template <DType kOutput>
inline constexpr int kWideElements = kOutput == DType::kF32 ? 4 : 8;
constexpr int kElementsOfThread = 16;

template <DType kCode, int kBlock, DType kOutput>
__device__ __forceinline__ void dequantize_wide_row(const DequantizeJob& job, std::int64_t n) {
  constexpr int kElements = kWideElements<kOutput>;
  constexpr int kUnitsHere = kElementsOfThread / kElements;
  constexpr int kBits = kCode == DType::kE2M1 ? 4 : 8;
  using Codes =
      std::conditional_t<kBits * kElements == 64, uint2,
                         std::conditional_t<kBits * kElements == 32, std::uint32_t, std::uint16_t>>;
  const std::byte* codes = job.q + n * job.q_row_bytes;
  auto* row = static_cast<ElementBits<kOutput>*>(job.y.data) + n * job.y.row_stride;
  const float inverse = kBlock == 16 ? 1.0f / *job.tensor_scale : 1.0f;
  const auto step = static_cast<int>(blockDim.x) * kElements;
  for (std::int64_t base = static_cast<int>(threadIdx.x) * kElements; base < job.hidden;
       base += kUnitsHere * step) {
    Codes raw[kUnitsHere];
    std::uint32_t scale_bits[kUnitsHere];
#pragma unroll
    for (int u = 0; u < kUnitsHere; ++u) {
      const std::int64_t h = base + u * step;
      if (h >= job.hidden) continue;
      raw[u] = *reinterpret_cast<const Codes*>(codes + h * kBits / 8);
      scale_bits[u] = fetch_scale<kBlock>(job, n, h);
    }
#pragma unroll
    for (int u = 0; u < kUnitsHere; ++u) {
      const std::int64_t h = base + u * step;
      if (h >= job.hidden) continue;
      float y[8];
      bool is_number = true;
      if constexpr (kBits == 4) {
        decode8_e2m1(raw[u], y);
      } else if constexpr (kElements == 8) {
        decode4(kCode, raw[u].x, y);
        decode4(kCode, raw[u].y, y + 4);
        is_number = kCode == DType::kI8 || !(has_e4m3_nan(raw[u].x) || has_e4m3_nan(raw[u].y));
      } else {
        decode4(kCode, raw[u], y);
        is_number = kCode == DType::kI8 || !has_e4m3_nan(raw[u]);
      }
      const float scale = wide_scale<kBlock>(job, scale_bits[u], inverse);
      is_number = is_number && fabsf(scale) < f32_from_bits(kF32Infinity);
#pragma unroll
      for (int i = 0; i < kElements; ++i) y[i] *= scale;
      std::uint32_t words[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        if constexpr (kOutput == DType::kF32) {
          words[w] = bits_from_f32(y[w]);
        } else {
          words[w] = narrow2_finite<kOutput>(y[2 * w], y[2 * w + 1]);
        }
      }
      if (!is_number) [[unlikely]]
        make_canonical<kOutput>(words);
      store_words<4>(words, 16, true, row + h);
    }
  }
}

template <DType kCode, int kBlock, DType kOutput>
__global__ void __launch_bounds__(512)
    dequantize_wide_kernel(const __grid_constant__ DequantizeJob job) {
  for (std::int64_t n = blockIdx.x; n < job.ranges.capacity; n += gridDim.x) {
    dequantize_wide_row<kCode, kBlock, kOutput>(job, n);
  }
}

bool is_wide(const DequantizeJob& job) {
  const std::int64_t size = job.y.dtype == DType::kF32 ? 4 : 2;
  const std::int64_t code_bytes = job.scheme.dtype == DType::kE2M1 ? 4 : 8;
  return job.hidden % kUnit == 0 && has_aligned_rows(job.q, job.q_row_bytes, 2, code_bytes) &&
         has_aligned_rows(job.y.data, job.y.row_stride * size, 2, 16);
}

void launch(void (*kernel)(DequantizeJob), const DequantizeJob& job, Stream stream) {
  const std::int64_t units = cdiv<std::int64_t>(job.hidden, kElementsOfThread);
  const std::int64_t num_steps = cdiv<std::int64_t>(units, kMaxThreads);
  const auto threads =
      static_cast<unsigned>(align_up<std::int64_t>(cdiv<std::int64_t>(units, num_steps), 32));
  const RowBlocks blocks = blocks_of(job.ranges);
  kernel<<<dim3(blocks.rows, blocks.experts), threads, 0, stream.get()>>>(job);
  check_launch("dequantize");
}

template <DType kCode, int kBlock, DType kOutput>
void launch_rows(const DequantizeJob& job, Stream stream) {
  if (job.ranges.num_rows != nullptr || job.ranges.num_experts > 1) {
    return launch(dequantize_expert_rows_kernel<kCode, kBlock, kOutput>, job, stream);
  }
  if ((kBlock > 0 || job.scheme.group != ScaleGroup::kBlock) && is_wide(job)) {
    return launch(dequantize_wide_kernel<kCode, kBlock, kOutput>, job, stream);
  }
  launch(dequantize_rows_kernel<kCode, kBlock, kOutput>, job, stream);
}

template <DType kCode, int kBlock>
void launch_output(const DequantizeJob& job, Stream stream) {
  switch (job.y.dtype) {
    case DType::kBF16: return launch_rows<kCode, kBlock, DType::kBF16>(job, stream);
    case DType::kF16: return launch_rows<kCode, kBlock, DType::kF16>(job, stream);
    default: return launch_rows<kCode, kBlock, DType::kF32>(job, stream);
  }
}

template <DType kCode>
void launch_bytes(const DequantizeJob& job, Stream stream) {
  const bool is_block = job.scheme.group == ScaleGroup::kBlock;
  if (is_block && job.scheme.block == 128) return launch_output<kCode, 128>(job, stream);
  if (kCode == DType::kE4M3 && job.scheme.scale_format == ScaleFormat::kE8M0) {
    return launch_output<DType::kE4M3, 32>(job, stream);
  }
  launch_output<kCode, 0>(job, stream);
}

// Rows without scales are converted, as quantize does for a matrix.
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

}  // namespace switchyard::cuda
