// SPDX-License-Identifier: Apache-2.0

#include "device/linked_module.h"

namespace switchyard {

CudaModuleEntry linked_cuda_module() { return &switchyard_cuda_module; }

}  // namespace switchyard
