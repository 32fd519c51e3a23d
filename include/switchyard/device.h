// SPDX-License-Identifier: Apache-2.0
//
// device.h: where memory lies and work runs.
#pragma once

#include <cstdint>
#include <string>

#include "switchyard/export.h"

namespace switchyard {

/// The numbers are DLPack's.
enum class DeviceType : std::int32_t { kCpu = 1, kCuda = 2 };

/// A processor with its memory. All CPUs of a host are one device, of index 0; a GPU's index is
/// CUDA's ordinal in this process.
struct Device {
  DeviceType type = DeviceType::kCpu;  ///< CPU or GPU
  std::int32_t index = 0;              ///< 0 for CPUs

  static constexpr Device cpu() { return {}; }  ///< the CPUs of this host
  /// The GPU with this ordinal.
  static constexpr Device cuda(std::int32_t index) { return {DeviceType::kCuda, index}; }

  constexpr bool is_cpu() const { return type == DeviceType::kCpu; }    ///< the type is kCpu
  constexpr bool is_cuda() const { return type == DeviceType::kCuda; }  ///< the type is kCuda
  friend constexpr bool operator==(const Device&, const Device&) = default;
};

/// "cpu" or, for example, "cuda:3".
SWITCHYARD_API std::string name_of(Device device);

/// GPUs that this process can use; 0 without a driver, a GPU or the CUDA module.
SWITCHYARD_API int num_cuda_devices();

}  // namespace switchyard
