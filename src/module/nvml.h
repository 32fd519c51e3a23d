// SPDX-License-Identifier: Apache-2.0
//
// nvml.h: the few things that only NVIDIA's management library says. It comes with the driver and
// is loaded when asked; without it they are unknown.
#pragma once

#include <cstdint>
#include <string>

namespace switchyard {

struct NvmlFacts {
  std::int64_t free_bytes = -1;
  int num_nvlinks = -1;
};

/// Empty when unknown.
std::string nvml_driver_version();

/// `uuid`: as nvidia-smi writes it.
NvmlFacts nvml_facts(const std::string& uuid);

}  // namespace switchyard
