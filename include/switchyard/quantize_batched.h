// SPDX-License-Identifier: Apache-2.0
//
// quantize_batched.h: quantizes the valid rows of each expert in a batch, and the gated activation
// between the two expert GEMMs, which never reaches memory unquantized.
//
// Letters used for shapes in this header:
//   L  experts of a batch    C  rows per expert (capacity)    T  rows    H  elements per row
//   I  elements per activated row (half of the first GEMM's outputs)    S  scales per row
#pragma once

#include <cstdint>

#include "switchyard/export.h"
#include "switchyard/quant.h"
#include "switchyard/stream.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// Quantizes the first counts[e] rows of each expert. Rows beyond are not read and not written in
/// `q`; their scales become 0.
///
///   x             [L, C, H]  bf16, f16 or f32; rows contiguous
///   counts        [L] i32, from 0 to C
///   q             [L, C, H]  stored_dtype(scheme), contiguous; written
///   scales        scale_dtype(scheme), any layout of scale_layout.h (tiles: one-byte scales):
///                 [L, C, S]; [L, 1, 1] for kTensor, one scale per expert; absent without scales
///   static_scale  f32 [1], or [L] with one scale per expert: the static scale of kTensor (absent:
///                 dynamic), the global scale of nvfp4 (required); absent for other schemes
///
/// On a GPU the host does not read counts and scales; counts are clamped to [0, capacity].
/// Errors: kInvalidArgument (shape, dtype, device, count); nothing is written then. On a GPU also
/// kNotAvailable (no CUDA module, no GPU), kSystem.
/// Mirrors vLLM's batched_moe_kernel_quantize_input outside graph capture; during capture vLLM
/// ignores the counts.
SWITCHYARD_API void quantize_batched(const TensorView& x, const TensorView& counts,
                                     const QuantScheme& scheme, const TensorView& q,
                                     const TensorView& scales, Stream stream = Stream::host(),
                                     const TensorView& static_scale = {});

/// How the scale of an activated row is computed.
enum class ActivationScale : std::uint8_t {
  kScheme,  ///< the scheme's own rule, applied to silu(gate) * up in f32
  kFused,   ///< vLLM's fused kernel: scale = max(amax, 1e-10) * (1 / 448), rounded up in
            ///< power-of-two schemes; element = e4m3(y * (1 / scale)), NaN as -448. For e4m3 blocks
            ///< of any size with rule kDivide
};

/// Computes silu(gate) * up in f32 and quantizes it to `q` and `scales`.
///
///   x             [T, 2I]  bf16, f16 or f32; gate first, then up; rows contiguous
///   q             [T, I]  scheme.dtype, contiguous; written
///   scales        [T, S] in any layout of scale_layout.h (tiles: one-byte scales); written;
///                 absent for kTensor and for schemes without scales
///   tensor_scale  [1] f32: the static scale of kTensor, the global scale of nvfp4; else absent
///
/// Refuses dynamic per-tensor scales, whose amax is known only after the last row, and mxfp6, which
/// is only simulated.
/// Errors: kInvalidArgument; nothing is written then.
SWITCHYARD_API void silu_mul_quantize(const TensorView& x, const QuantScheme& scheme,
                                      const TensorView& q, const TensorView& scales,
                                      Stream stream = Stream::host(),
                                      ActivationScale activation_scale = ActivationScale::kScheme,
                                      const TensorView& tensor_scale = {});

/// The same for the first counts[e] rows of each expert: x [L, T, 2I], q [L, T, I], scales
/// [L, T, S]. Rows beyond are not read and not written in `q`; their scales become 0.
/// Mirrors vLLM's persistent_masked_m_silu_mul_quant (with kFused), which computes y, scales and
/// quotients in bf16 where this computes in f32.
SWITCHYARD_API void silu_mul_quantize_batched(
    const TensorView& x, const TensorView& counts, const QuantScheme& scheme, const TensorView& q,
    const TensorView& scales, Stream stream = Stream::host(),
    ActivationScale activation_scale = ActivationScale::kScheme,
    const TensorView& tensor_scale = {});

}  // namespace switchyard
