// SPDX-License-Identifier: Apache-2.0

#include "engine/mpi_module.h"

#include <atomic>

#include "core/fail.h"
#include "core/module_file.h"

namespace switchyard {
namespace {

std::atomic<const MpiModule*> module_in_use = nullptr;

struct Loaded {
  const MpiModule* module = nullptr;
  std::string why;
};

Loaded load() {
  constexpr ModuleFile kFile{.title = "MPI",
                             .name = "libswitchyard_mpi.so",
                             .entry = "switchyard_mpi_module",
                             .setting = "SWITCHYARD_MPI_MODULE",
                             .how_to_get = "build where CMake finds MPI",
                             .is_global = true};
  Loaded loaded;
  loaded.module = load_module<MpiModule>(kFile, loaded.why);
  module_in_use = loaded.module;
  return loaded;
}

const Loaded& loaded_module() {
  static const Loaded loaded = load();
  return loaded;
}

}  // namespace

const MpiModule& mpi_module() {
  const Loaded& loaded = loaded_module();
  require(loaded.module != nullptr, Errc::kNotAvailable, "mpi: {}", loaded.why);
  return *loaded.module;
}

std::string why_no_mpi() { return loaded_module().why; }

void forbid_mpi_finalize() noexcept {
  const MpiModule* const module = module_in_use;
  if (module != nullptr) module->forbid_finalize();
}

}  // namespace switchyard
