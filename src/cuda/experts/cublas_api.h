// SPDX-License-Identifier: Apache-2.0
//
// cublas_api.h: the cuBLAS functions that experts need, loaded on first use. They are declared here
// with the C interface of versions 12 and 13, because not every toolkit ships the headers and those
// of 12.4 lack the grouped call.
#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>
#include <library_types.h>
#include <string>

namespace switchyard::cuda {

struct CublasContext;
using CublasHandle = CublasContext*;
using CublasStatus = int;
inline constexpr CublasStatus kCublasSuccess = 0;
inline constexpr int kCublasKeep = 0;       ///< CUBLAS_OP_N
inline constexpr int kCublasTranspose = 1;  ///< CUBLAS_OP_T
inline constexpr int kCublasCompute32F = 68;
inline constexpr int kCublasDefaultAlgorithm = -1;
inline constexpr int kCublasWholePrecisionReduction = 16;

struct CublasApi {
  CublasStatus (*create)(CublasHandle*) = nullptr;
  CublasStatus (*destroy)(CublasHandle) = nullptr;
  CublasStatus (*set_stream)(CublasHandle, cudaStream_t) = nullptr;
  CublasStatus (*set_workspace)(CublasHandle, void*, std::size_t) = nullptr;
  CublasStatus (*set_math_mode)(CublasHandle, int) = nullptr;
  const char* (*status_string)(CublasStatus) = nullptr;
  CublasStatus (*gemm)(CublasHandle, int, int, int m, int n, int k, const void* alpha,
                       const void* a, cudaDataType_t, int lda, const void* b, cudaDataType_t,
                       int ldb, const void* beta, void* c, cudaDataType_t, int ldc, int compute,
                       int algorithm) = nullptr;
  CublasStatus (*gemm_strided)(CublasHandle, int, int, int m, int n, int k, const void* alpha,
                               const void* a, cudaDataType_t, int lda, long long stride_a,
                               const void* b, cudaDataType_t, int ldb, long long stride_b,
                               const void* beta, void* c, cudaDataType_t, int ldc,
                               long long stride_c, int count, int compute, int algorithm) = nullptr;
  /// Null before 12.5. The arrays of matrix pointers are in GPU memory, all else is in host memory.
  CublasStatus (*gemm_grouped)(CublasHandle, const int*, const int*, const int* m, const int* n,
                               const int* k, const void* alpha, const void* const* a,
                               cudaDataType_t, const int* lda, const void* const* b, cudaDataType_t,
                               const int* ldb, const void* beta, void* const* c, cudaDataType_t,
                               const int* ldc, int group_count, const int* group_size,
                               int compute) = nullptr;
};

/// Loads `path` or, if it is empty, libcublas.so.13 or else libcublas.so.12 from the system's
/// search path. The first successful call decides for the process. Errors: kNotAvailable, naming
/// what was tried.
const CublasApi& cublas_api(const std::string& path);

/// Throws unless `status` is success. Errors: kSystem.
void check_cublas(const CublasApi& api, CublasStatus status, const char* what);

}  // namespace switchyard::cuda
