// SPDX-License-Identifier: Apache-2.0
//
// workload.h: the sizes of a model's MoE layers, as far as an exchange and its experts see them.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace switchyard::measure {

struct Workload {
  std::string name;  ///< "deepseek-v3"; of a file: its path
  std::int64_t hidden = 0;
  std::int32_t num_experts = 0;
  std::int32_t num_topk = 0;
  std::int64_t intermediate = 0;  ///< of one routed expert
};

/// Those with names, in the order of the help text.
std::span<const Workload> named_workloads();

/// "deepseek-v3, kimi-k2, ..."
std::string workload_names();

/// A name, a config.json or the folder that holds one.
/// Errors: kInvalidArgument when it is neither; as read_model_config.
Workload find_workload(const std::string& name_or_path);

}  // namespace switchyard::measure
