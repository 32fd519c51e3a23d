// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "device/device_facts.h"

namespace switchyard {

/// Loads NCCL to learn its version; no context is made on any GPU. `wanted_heap`: the setting
/// SWITCHYARD_HEAP. Errors: kNotAvailable, kSystem.
DeviceFacts describe_devices(const std::string& wanted_heap);

}  // namespace switchyard
