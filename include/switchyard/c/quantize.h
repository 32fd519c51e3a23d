// SPDX-License-Identifier: Apache-2.0
//
// c/quantize.h: activation formats and quantization. See quant.h and quantize_batched.h.
//
// Letters: T rows, H elements per row, S scales per row, L experts of a batch, C rows per expert,
// I elements per activated row.
#pragma once

#include "switchyard/c/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/// What a scheme stores for rows of `hidden` elements. Schemes: those of docs/schemes.md.
typedef struct sy_scheme_info {
  size_t struct_size;
  int64_t num_scales;       ///< S; 0 without scales
  sy_dtype element_dtype;   ///< of q, for bf16 rows
  sy_dtype scale_dtype;     ///< of a stored scale
  int32_t block;            ///< elements that share a scale; 0 unless scales are per block
  bool needs_tensor_scale;  ///< the caller gives the f32 scale of the tensor: nvfp4
} sy_scheme_info;
/// Fills `info`.
SY_API sy_status sy_scheme_describe(const char* scheme, int64_t hidden, sy_scheme_info* info);

/// Optional arguments of sy_quantize.
typedef struct sy_quantize_options {
  size_t struct_size;
  const sy_tensor* static_scale;  ///< f32: [1], or [T, 1] for fp8_token; or NULL
  const float* scale_ub;          ///< fp8_token: upper bound on the amax of a row; or NULL
} sy_quantize_options;

/// quantize: x [T, H] bf16, f16 or f32 to q [T, H] and scales [T, S], [1] for one scale per tensor,
/// or NULL for schemes without scales.
SY_API sy_status sy_quantize(const sy_tensor* x, const char* scheme,
                             const sy_quantize_options* options, const sy_tensor* q,
                             const sy_tensor* scales, void* stream);
/// The same into memory of `allocator`. `scale_layout`: "row_major" (NULL), "column_major" or
/// "column_major_aligned". `scales` becomes NULL for schemes without scales.
SY_API sy_status sy_quantize_new(const sy_tensor* x, const char* scheme, const char* scale_layout,
                                 const sy_quantize_options* options, const sy_allocator* allocator,
                                 void* stream, sy_array** q, sy_array** scales);
/// dequantize: the inverse, into y of bf16, f16 or f32. `tensor_scale`: that of nvfp4, or NULL.
SY_API sy_status sy_dequantize(const sy_tensor* q, const sy_tensor* scales, const char* scheme,
                               const sy_tensor* tensor_scale, const sy_tensor* y, void* stream);
/// quantize_batched: the first counts[e] rows of each expert of x [L, C, H]; counts [L] i32.
SY_API sy_status sy_quantize_batched(const sy_tensor* x, const sy_tensor* counts,
                                     const char* scheme, const sy_tensor* static_scale,
                                     const sy_tensor* q, const sy_tensor* scales, void* stream);
/// silu_mul_quantize: silu(gate) * up of x [T, 2 I] to q [T, I]; with `counts` [L] i32 (or NULL) of
/// x [L, C, 2 I]. `is_fused`: scales as vLLM's fused kernel. `tensor_scale`: [1] f32 or NULL.
SY_API sy_status sy_silu_mul_quantize(const sy_tensor* x, const sy_tensor* counts,
                                      const char* scheme, bool is_fused,
                                      const sy_tensor* tensor_scale, const sy_tensor* q,
                                      const sy_tensor* scales, void* stream);
/// relayout_scales: copies scales from one layout to another, rows or tiles, on the host.
SY_API sy_status sy_scales_relayout(const sy_tensor* from, const sy_tensor* to);

#ifdef __cplusplus
}
#endif
