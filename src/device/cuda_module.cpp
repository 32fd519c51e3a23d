// SPDX-License-Identifier: Apache-2.0
//
// Where the module is looked for: in the program itself (a static build), then where
// load_module looks.

#include "device/cuda_module.h"

#include <cstdlib>

#include "core/fail.h"
#include "core/module_file.h"
#include "device/linked_module.h"

namespace switchyard {
namespace {

struct Loaded {
  const CudaModule* module = nullptr;
  std::string why;
};

Loaded load() {
  constexpr ModuleFile kFile{.title = "CUDA",
                             .name = "libswitchyard_cuda.so",
                             .entry = "switchyard_cuda_module",
                             .setting = "SWITCHYARD_CUDA_MODULE",
                             .how_to_get = "build with SWITCHYARD_WITH_CUDA=ON"};
  Loaded loaded;
  const CudaModuleEntry linked = linked_cuda_module();
  loaded.module = linked != nullptr ? linked() : load_module<CudaModule>(kFile, loaded.why);
  if (loaded.module != nullptr && loaded.module->device_count() == 0) {
    loaded = {nullptr, "no NVIDIA driver or no GPU on this machine"};
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
