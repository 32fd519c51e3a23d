// SPDX-License-Identifier: Apache-2.0
//
// check.h: turns errors of the CUDA runtime into Error.
#pragma once

#include <cuda_runtime_api.h>

namespace switchyard::cuda {

/// Throws "<what>: CUDA says <name>: <description>" unless `result` is cudaSuccess. Errors:
/// kOutOfMemory for cudaErrorMemoryAllocation; kNotAvailable without a device, a driver or a kernel
/// image for the GPU; else kSystem.
void check_cuda(cudaError_t result, const char* what);

/// Whether what is launched into `stream` becomes part of a graph. Errors: as check_cuda.
bool is_capturing(cudaStream_t stream, const char* what);

/// Call after a launch: throws the error that it left behind, as check_cuda does.
void check_launch(const char* kernel);

}  // namespace switchyard::cuda
