// SPDX-License-Identifier: Apache-2.0
//
// workload.h: the sizes of a model's MoE layers that an exchange and its experts depend on.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace switchyard::measure {

struct Workload {
  std::string name;  ///< for example "deepseek-v3"; the path for a file
  std::int64_t hidden = 0;
  std::int32_t num_experts = 0;
  std::int32_t num_topk = 0;
  std::int64_t intermediate = 0;  ///< of one routed expert
};

/// Returns the built-in workloads in the order of the help text.
std::span<const Workload> named_workloads();

/// Returns "deepseek-v3, kimi-k2, ...".
std::string workload_names();

/// `name_or_path` is a name, a config.json or the folder that holds one.
/// Errors: kInvalidArgument when it is none of these; also those of read_model_config.
Workload find_workload(const std::string& name_or_path);

}  // namespace switchyard::measure
