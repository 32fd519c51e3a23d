// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "switchyard/group.h"

#include "device/device_meter.h"

namespace switchyard {

/// See CudaModule::make_meter.
std::unique_ptr<DeviceMeter> make_cuda_meter(const Group& group);

}  // namespace switchyard
