// SPDX-License-Identifier: Apache-2.0
//
// Where the module is looked for: in the program itself (a static build), at the path that the
// setting names, beside the library or the program, where the system keeps libraries.

#include "device/cuda_module.h"

#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <system_error>
#include <vector>

#include "switchyard/version.h"

#include "core/fail.h"
#include "core/settings.h"
#include "device/linked_module.h"

namespace switchyard {
namespace {

constexpr const char* kFileName = "libswitchyard_cuda.so";
constexpr const char* kEntry = "switchyard_cuda_module";
using Entry = CudaModuleEntry;

// The file that this code is in. Of a program the loader knows only argv[0], which need not say
// where it lies.
std::filesystem::path own_file() {
  Dl_info self{};
  if (dladdr(reinterpret_cast<const void*>(&why_no_cuda), &self) == 0) return {};
  const std::filesystem::path path = self.dli_fname;
  if (path.has_parent_path()) return path;
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error);
}

std::vector<std::string> candidates() {
  const std::string asked = setting("SWITCHYARD_CUDA_MODULE").text;
  if (!asked.empty()) return {asked};
  std::vector<std::string> paths;
  if (const std::filesystem::path folder = own_file().parent_path(); !folder.empty()) {
    for (const char* from_here : {"", "../lib", "../lib64"}) {
      paths.push_back((folder / from_here / kFileName).string());
    }
  }
  paths.emplace_back(kFileName);
  return paths;
}

// `why`: what the loader says of the first file that is there, or of the last place.
Entry find_entry(std::string& why) {
  bool is_there = false;
  if (const Entry linked = linked_cuda_module()) return linked;
  for (const std::string& path : candidates()) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      if (!is_there) why = dlerror();
      is_there = is_there || std::filesystem::exists(path);
      continue;
    }
    if (void* entry = dlsym(handle, kEntry)) return reinterpret_cast<Entry>(entry);
    why = path + " has no " + kEntry;
  }
  return nullptr;
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
