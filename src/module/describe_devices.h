// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "device/device_facts.h"

namespace switchyard {

/// Loads NCCL to learn its version; creates no context on any GPU. `wanted_heap` is the value of
/// the setting SWITCHYARD_HEAP. Errors: kNotAvailable, kSystem.
DeviceFacts describe_devices(const std::string& wanted_heap);

}  // namespace switchyard
