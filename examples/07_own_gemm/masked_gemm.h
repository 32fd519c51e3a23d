// SPDX-License-Identifier: Apache-2.0
//
// masked_gemm.h: a grouped GEMM of your own: the valid fp8 rows of each expert times fp8 weights,
// with the scales of DeepSeek's fp8. Shapes, masks and the order of scales are those of DeepGEMM's
// m_grouped_fp8_gemm_nt_masked.
#pragma once

#include <cstdint>
#include <cuda_runtime_api.h>

/// out[e][m][n] = sum over k of x[e][m][k] * w[e][n][k], for the first num_rows[e] rows of each
/// expert. The tensor cores sum 128 k at a time; these sums are scaled and added in f32.
struct MaskedGemm {
  const std::uint8_t* x;         ///< [experts, capacity, depth] e4m3
  const float* x_scales;         ///< [experts, capacity, depth / 128], rows contiguous in a column
  std::int64_t x_scale_expert;   ///< floats from one expert to the next
  std::int64_t x_scale_column;   ///< floats from one column to the next
  const std::uint8_t* w;         ///< [experts, outputs, depth] e4m3
  const float* w_scales;         ///< [experts, outputs / 128, depth / 128]
  const std::int32_t* num_rows;  ///< [experts]
  void* out;                     ///< [experts, capacity, outputs], f32 or bf16
  bool is_out_bf16;
  int experts;
  int capacity;
  int outputs;  ///< a multiple of 128
  int depth;    ///< a multiple of 128
};

cudaError_t launch_masked_gemm(const MaskedGemm& gemm, cudaStream_t stream);
