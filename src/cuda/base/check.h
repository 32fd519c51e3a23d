// SPDX-License-Identifier: Apache-2.0
//
// check.h: what a call of the CUDA runtime returned, as an Error.
#pragma once

#include <cuda_runtime_api.h>

namespace switchyard::cuda {

/// Throws unless `result` is cudaSuccess: "<what>: <text of CUDA>". Errors: kOutOfMemory for
/// cudaErrorMemoryAllocation, kNotAvailable without a device or driver, else kSystem.
void check_cuda(cudaError_t result, const char* what);

/// After a launch: throws what it left behind.
void check_launch(const char* kernel);

}  // namespace switchyard::cuda
