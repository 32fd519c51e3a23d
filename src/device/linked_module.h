// SPDX-License-Identifier: Apache-2.0
//
// linked_module.h: the CUDA module of a static build.
#pragma once

#include "device/cuda_module.h"

namespace switchyard {

using CudaModuleEntry = const CudaModule* (*)();

/// The entry point, or null when the module is a file of its own.
CudaModuleEntry linked_cuda_module();

}  // namespace switchyard
