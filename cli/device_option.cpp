// SPDX-License-Identifier: Apache-2.0

#include "device_option.h"

#include <cstdlib>

#include "core/fail.h"
#include "device/cuda_module.h"

namespace switchyard::cli {

void require_device(const std::string& verb, const std::string& device) {
  if (device == "cpu") return;
  const std::string reason = why_no_cuda();
  require(reason.empty(), Errc::kNotAvailable,
          "{}: --device {}, but CUDA cannot be used: {}; see switchyard doctor", verb, device,
          reason);
}

void prepare_for_shared_gpus() {
  constexpr int kKeep = 0;  // keeps values that the user has set
  setenv("CUDA_MODULE_LOADING", "EAGER", kKeep);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", kKeep);
}

}  // namespace switchyard::cli
