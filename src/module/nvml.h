// SPDX-License-Identifier: Apache-2.0
//
// nvml.h: the few facts that only NVIDIA's management library knows. It comes with the driver and
// is loaded on first use; without it the facts are unknown.
#pragma once

#include <cstdint>
#include <string>

namespace switchyard {

struct NvmlFacts {
  std::int64_t free_bytes = -1;
  int num_nvlinks = -1;
};

/// The version of the driver; empty when unknown.
std::string nvml_driver_version();

/// `uuid` is as nvidia-smi prints it. Fields are -1 when unknown.
NvmlFacts nvml_facts(const std::string& uuid);

}  // namespace switchyard
