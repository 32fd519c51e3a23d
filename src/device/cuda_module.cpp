// SPDX-License-Identifier: Apache-2.0
//
// Where the module is looked for: in the program itself (a static build), then where
// load_module_entry looks.

#include "device/cuda_module.h"

#include <cstdlib>

#include "switchyard/version.h"

#include "core/fail.h"
#include "core/module_file.h"
#include "core/settings.h"
#include "device/linked_module.h"

namespace switchyard {
namespace {

constexpr const char* kFileName = "libswitchyard_cuda.so";
constexpr const char* kEntry = "switchyard_cuda_module";
using Entry = CudaModuleEntry;

Entry find_entry(std::string& why) {
  if (const Entry linked = linked_cuda_module()) return linked;
  return reinterpret_cast<Entry>(
      load_module_entry(setting("SWITCHYARD_CUDA_MODULE").text, kFileName, kEntry, false, why));
}

struct Loaded {
  const CudaModule* module = nullptr;
  std::string why;
};

Loaded load() {
  Loaded loaded;
  std::string why;
  const Entry entry = find_entry(why);
  if (entry == nullptr) {
    loaded.why = fmt::format(
        "the CUDA module is not there ({}); build with SWITCHYARD_WITH_CUDA=ON or set "
        "SWITCHYARD_CUDA_MODULE to its path",
        why);
    return loaded;
  }
  const CudaModule* module = entry();
  if (std::string(module->version) != version()) {
    loaded.why = fmt::format(
        "the CUDA module is of version {}, this library of {}; install both "
        "from one build",
        module->version, version());
  } else if (module->device_count() == 0) {
    loaded.why = "no NVIDIA driver or no GPU on this machine";
  } else {
    loaded.module = module;
  }
  return loaded;
}

const Loaded& loaded_module() {
  static const Loaded loaded = load();
  return loaded;
}

}  // namespace

const CudaModule& cuda_module() {
  const Loaded& loaded = loaded_module();
  require(loaded.module != nullptr, Errc::kNotAvailable, "cuda: {}", loaded.why);
  return *loaded.module;
}

std::string why_no_cuda() { return loaded_module().why; }

void prepare_for_shared_gpus() {
  constexpr int kKeep = 0;
  setenv("CUDA_MODULE_LOADING", "EAGER", kKeep);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", kKeep);
}

}  // namespace switchyard
