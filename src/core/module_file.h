// SPDX-License-Identifier: Apache-2.0
//
// module_file.h: loads a part of the library that is a file of its own. What was loaded stays.
#pragma once

#include <string>

namespace switchyard {

struct ModuleFile {
  const char* title;       ///< "CUDA", for messages
  const char* name;        ///< of the file
  const char* entry;       ///< the function that returns the module's table
  const char* setting;     ///< names its path
  const char* how_to_get;  ///< "build with ..."
  bool is_global = false;  ///< its libraries may load plug-ins that need their symbols
};

/// The address of the entry. The file is looked for where the setting says or, when that is empty,
/// beside the library or the program and where the system keeps libraries. Null, with what the
/// loader says of the first file that is there in `why`, when it cannot be loaded.
void* load_module_entry(const ModuleFile& file, std::string& why);

/// Empty when `module_version` is that of the library.
std::string why_not_this_version(const ModuleFile& file, const char* module_version);

/// The module's table, whose first field is its version; null, with the reason in `why`, when there
/// is none of this version.
template <typename Module>
const Module* load_module(const ModuleFile& file, std::string& why) {
  void* const entry = load_module_entry(file, why);
  if (entry == nullptr) return nullptr;
  const Module* const module = reinterpret_cast<const Module* (*)()>(entry)();
  why = why_not_this_version(file, module->version);
  return why.empty() ? module : nullptr;
}

}  // namespace switchyard
