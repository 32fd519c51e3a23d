// SPDX-License-Identifier: Apache-2.0

#include "device/linked_module.h"

namespace switchyard {

CudaModuleEntry linked_cuda_module() { return nullptr; }

}  // namespace switchyard
