// SPDX-License-Identifier: Apache-2.0
//
// NVML is declared here because the toolkit does not always include nvml.h. When NVML changes a
// function, it gives the new one a versioned name, so these declarations stay valid.

#include "module/nvml.h"

#include <array>
#include <dlfcn.h>

namespace switchyard {
namespace {

using NvmlDevice = void*;
constexpr int kSuccess = 0;
constexpr int kNotSupported = 3;
constexpr int kFeatureEnabled = 1;
constexpr unsigned kMaxLinks = 18;

struct Memory {
  unsigned long long total, free, used;
};

class Nvml {
 public:
  Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) return;
    int (*init)() = nullptr;
    find(init, "nvmlInit_v2");
    find(driver_version, "nvmlSystemGetDriverVersion");
    find(device_by_uuid, "nvmlDeviceGetHandleByUUID");
    find(memory_info, "nvmlDeviceGetMemoryInfo");
    find(nvlink_state, "nvmlDeviceGetNvLinkState");
    is_ready = is_complete_ && init() == kSuccess;
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;
  ~Nvml() {
    if (library_ != nullptr) dlclose(library_);
  }

  bool is_ready = false;
  int (*driver_version)(char*, unsigned) = nullptr;
  int (*device_by_uuid)(const char*, NvmlDevice*) = nullptr;
  int (*memory_info)(NvmlDevice, Memory*) = nullptr;
  int (*nvlink_state)(NvmlDevice, unsigned, int*) = nullptr;

 private:
  template <typename Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    is_complete_ = is_complete_ && function != nullptr;
  }
  void* library_;
  bool is_complete_ = true;
};

const Nvml& nvml() {
  static const Nvml library;
  return library;
}

int count_nvlinks(NvmlDevice device) {
  int count = 0;
  for (unsigned link = 0; link < kMaxLinks; ++link) {
    int state = 0;
    const int result = nvml().nvlink_state(device, link, &state);
    if (result == kNotSupported) return 0;
    if (result == kSuccess && state == kFeatureEnabled) ++count;
  }
  return count;
}

}  // namespace

std::string nvml_driver_version() {
  std::array<char, 96> text{};
  const bool is_known =
      nvml().is_ready &&
      nvml().driver_version(text.data(), static_cast<unsigned>(text.size() - 1)) == kSuccess;
  return is_known ? text.data() : "";
}

NvmlFacts nvml_facts(const std::string& uuid) {
  NvmlFacts facts;
  NvmlDevice device = nullptr;
  if (!nvml().is_ready || nvml().device_by_uuid(uuid.c_str(), &device) != kSuccess) return facts;
  Memory memory{};
  if (nvml().memory_info(device, &memory) == kSuccess) {
    facts.free_bytes = static_cast<std::int64_t>(memory.free);
  }
  facts.num_nvlinks = count_nvlinks(device);
  return facts;
}

}  // namespace switchyard
