// SPDX-License-Identifier: Apache-2.0

#include "engine/mpi_module.h"

#include "switchyard/version.h"

#include "core/fail.h"
#include "core/module_file.h"
#include "core/settings.h"

namespace switchyard {
namespace {

struct Loaded {
  const MpiModule* module = nullptr;
  std::string why;
};

// MPI libraries load plug-ins that expect to find the library's symbols.
Loaded load() {
  Loaded loaded;
  std::string why;
  auto* const entry = reinterpret_cast<const MpiModule* (*)()>(
      load_module_entry(setting("SWITCHYARD_MPI_MODULE").text, "libswitchyard_mpi.so",
                        "switchyard_mpi_module", true, why));
  if (entry == nullptr) {
    loaded.why = fmt::format(
        "the MPI module is not there ({}); build where CMake finds MPI, or set "
        "SWITCHYARD_MPI_MODULE to its path",
        why);
    return loaded;
  }
  const MpiModule* module = entry();
  if (std::string(module->version) != version()) {
    loaded.why = fmt::format(
        "the MPI module is of version {}, this library of {}; install both from one build",
        module->version, version());
    return loaded;
  }
  loaded.module = module;
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

}  // namespace switchyard
