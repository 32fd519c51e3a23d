// SPDX-License-Identifier: Apache-2.0
//
// silu_mul_quantize.cpp: the gated activation and its quantization, one row at a time. silu(gate) *
// up is kept in one f32 scratch row, which stays in cache, so memory is read and written once.

#include <algorithm>
#include <array>
#include <cstring>

#include "switchyard/quantize_batched.h"

#include "core/aligned_buffer.h"
#include "quant/activation.h"
#include "quant/host_quantize.h"
#include "quant/quantize_checks.h"
#include "quant/rows.h"
#include "quant/scalar.h"
#include "quant/scale_plane.h"
#include "quant/scheme.h"

namespace switchyard {
namespace {

constexpr std::int64_t kGatedChunk =
    1024;  // f32 elements of gate and up on the stack, which stay in L1

struct Job {
  BatchRows rows;
  QuantScheme scheme;
  ActivationScale activation_scale;
  std::int64_t intermediate = 0;
  std::int64_t num_scales = 0;
  float tensor_scale = 1.0f;
};

// y = silu(gate) * up of one row.
void activate(const std::byte* x, DType dtype, std::int64_t intermediate, float* y) {
  if (dtype == DType::kF32) {
    const auto* gate = reinterpret_cast<const float*>(x);
    silu_mul(gate, gate + intermediate, intermediate, y);
    return;
  }
  std::array<float, kGatedChunk> gate;
  std::array<float, kGatedChunk> up;
  const std::int64_t bytes = bits_of(dtype) / 8;
  for (std::int64_t begin = 0; begin < intermediate; begin += kGatedChunk) {
    const std::int64_t count = std::min(kGatedChunk, intermediate - begin);
    dequantize_row(schemes::kNone, x + bytes * begin, nullptr, dtype, count, gate.data());
    dequantize_row(schemes::kNone, x + bytes * (intermediate + begin), nullptr, dtype, count,
                   up.data());
    silu_mul(gate.data(), up.data(), count, y + begin);
  }
}

// kTensor's rule makes NaN +448 and the fused kernel -448, so NaNs are among the codes of +448.
void mark_nan(const float* y, std::int64_t count, float scale, std::uint8_t* q) {
  const float factor = 1.0f / scale;
  std::uint8_t* end = q + count;
  for (std::uint8_t* at = q; at != end; ++at) {
    at = static_cast<std::uint8_t*>(
        std::memchr(at, kE4M3MaxCode, static_cast<std::size_t>(end - at)));
    if (at == nullptr) return;
    const float product = y[at - q] * factor;
    if (product != product) *at = kE4M3MinCode;
  }
}

// Quantizes each block as a tensor with a given scale.
void quantize_fused(const QuantScheme& scheme, const float* y, std::int64_t intermediate,
                    std::byte* q, void* scales) {
  for (std::int64_t begin = 0, b = 0; begin < intermediate; begin += scheme.block, ++b) {
    const std::int64_t count = std::min<std::int64_t>(scheme.block, intermediate - begin);
    const float amax = std::max(max_magnitude(y + begin, DType::kF32, count), 1e-10f);
    float scale = amax * (1.0f / kE4M3Max);
    if (scheme.scale_format != ScaleFormat::kF32) scale = power_of_two_ceil(scale);
    quantize_row(schemes::kFp8Tensor, y + begin, DType::kF32, count, q + begin, nullptr, scale);
    mark_nan(y + begin, count, scale, reinterpret_cast<std::uint8_t*>(q + begin));
    scalar::store_scale(scheme.scale_format, scales, b, scale);
  }
}

Job check(const char* name, const BatchRows& rows, const QuantScheme& scheme, const TensorView& q,
          const TensorView& scales, ActivationScale activation_scale, const TensorView& given) {
  check_silu_mul_quantize(name, rows, scheme, q, scales, activation_scale, given);
  check_counts(name, rows);
  const std::int64_t intermediate = rows.hidden / 2;
  return {rows,
          scheme,
          activation_scale,
          intermediate,
          scales.has_value() ? num_scales(scheme, intermediate) : 0,
          given.has_value() ? *given.as<float>() : 1.0f};
}

void run(const Job& job, const TensorView& q, const TensorView& scales) {
  if (job.intermediate == 0 && job.num_scales == 0) return;
  const std::size_t q_row_bytes = row_bytes(job.scheme, job.intermediate, DType::kF32);
  const AlignedBuffer activated(sizeof(float) * static_cast<std::size_t>(job.intermediate));
  const AlignedBuffer scale_row(scale_row_bytes(job.scheme, job.intermediate));
  auto* y = activated.as<float>();
  for (std::int64_t e = 0; e < job.rows.num_experts; ++e) {
    std::byte* codes =
        q.as<std::byte>() + q_row_bytes * static_cast<std::size_t>(e * job.rows.capacity);
    const ScalePlane target = scales.has_value() ? plane_of(scales, e) : ScalePlane{};
    const ScalePlane made = plane_of_row(scale_row.data(), job.num_scales, target.element_bytes);
    if (scales.has_value()) clear_scales(target);
    for (std::int64_t n = 0; n < job.rows.num_rows(e); ++n, codes += q_row_bytes) {
      activate(job.rows.row(e, n), job.rows.x.dtype(), job.intermediate, y);
      if (job.activation_scale == ActivationScale::kFused) {
        quantize_fused(job.scheme, y, job.intermediate, codes, scale_row.data());
      } else {
        quantize_row(job.scheme, y, DType::kF32, job.intermediate, codes, scale_row.data(),
                     job.tensor_scale);
      }
      if (scales.has_value()) copy_scale_row(made, 0, target, n, job.num_scales);
    }
  }
}

}  // namespace

namespace host {

void silu_mul_quantize(const TensorView& x, const QuantScheme& scheme, const TensorView& q,
                       const TensorView& scales, ActivationScale activation_scale,
                       const TensorView& tensor_scale) {
  constexpr const char* kName = "silu_mul_quantize";
  run(check(kName, check_matrix_rows(kName, x), scheme, q, scales, activation_scale, tensor_scale),
      q, scales);
}

void silu_mul_quantize_batched(const TensorView& x, const TensorView& counts,
                               const QuantScheme& scheme, const TensorView& q,
                               const TensorView& scales, ActivationScale activation_scale,
                               const TensorView& tensor_scale) {
  constexpr const char* kName = "silu_mul_quantize_batched";
  run(check(kName, check_batch_rows(kName, x, counts), scheme, q, scales, activation_scale,
            tensor_scale),
      q, scales);
}

}  // namespace host
}  // namespace switchyard
