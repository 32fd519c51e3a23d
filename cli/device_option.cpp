// SPDX-License-Identifier: Apache-2.0

#include "device_option.h"

#include "core/fail.h"
#include "device/cuda_module.h"

namespace switchyard::cli {

void require_device(const std::string& verb, const std::string& device) {
  if (device == "cpu") return;
  const std::string reason = why_no_cuda();
  require(reason.empty(), Errc::kNotAvailable, "{}: --device {}, but there is none: {}", verb,
          device, reason);
}

}  // namespace switchyard::cli
