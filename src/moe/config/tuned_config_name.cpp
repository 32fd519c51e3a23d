// SPDX-License-Identifier: Apache-2.0

#include <algorithm>

#include "switchyard/quant_config.h"

#include "core/fail.h"

namespace switchyard {
namespace {

/// Whether `name`, split at underscores, contains `token`.
bool has_token(const std::string& name, const std::string& token) {
  return ("_" + name + "_").find("_" + token + "_") != std::string::npos;
}

std::string file_device_name(std::string name) {
  std::replace(name.begin(), name.end(), ' ', '_');
  return has_token(name, "H200") ? "NVIDIA_H200" : name;
}

}  // namespace

std::string get_config_file_name(std::int64_t num_experts, std::int64_t intermediate,
                                 const std::optional<std::string>& config_name,
                                 const std::optional<BlockShape>& block_shape,
                                 const std::string& device_name) {
  require(num_experts >= 1 && intermediate >= 1, Errc::kInvalidArgument,
          "get_config_file_name: num_experts is {} and intermediate is {}, must be at least 1",
          num_experts, intermediate);
  require(!device_name.empty(), Errc::kInvalidArgument,
          "get_config_file_name: the device name is empty, must be the name of a device");
  std::string name = fmt::format("E={},N={},device_name={}", num_experts, intermediate,
                                 file_device_name(device_name));
  if (config_name.has_value()) name += ",dtype=" + *config_name;
  if (block_shape.has_value() && (*block_shape)[0] != 0 && (*block_shape)[1] != 0) {
    name += fmt::format(",block_shape=[{},{}]", (*block_shape)[0], (*block_shape)[1]);
  }
  return name + ".json";
}

}  // namespace switchyard
