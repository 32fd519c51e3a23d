// SPDX-License-Identifier: Apache-2.0

#include "cuda/base/check.h"

#include "core/fail.h"

namespace switchyard::cuda {
namespace {

Errc code_of(cudaError_t result) {
  switch (result) {
    case cudaErrorMemoryAllocation: return Errc::kOutOfMemory;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorNoKernelImageForDevice: return Errc::kNotAvailable;
    default: return Errc::kSystem;
  }
}

}  // namespace

void check_cuda(cudaError_t result, const char* what) {
  if (result == cudaSuccess) [[likely]]
    return;
  cudaGetLastError();  // cleared, so that no later check reports it again
  fail(code_of(result), "{}: CUDA says {}: {}", what, cudaGetErrorName(result),
       cudaGetErrorString(result));
}

bool is_capturing(cudaStream_t stream, const char* what) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check_cuda(cudaStreamIsCapturing(stream, &status), what);
  return status != cudaStreamCaptureStatusNone;
}

void check_launch(const char* kernel) { check_cuda(cudaGetLastError(), kernel); }

}  // namespace switchyard::cuda
