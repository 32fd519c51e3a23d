// SPDX-License-Identifier: Apache-2.0

#include "core/module_file.h"

#include <dlfcn.h>
#include <filesystem>
#include <system_error>
#include <vector>

namespace switchyard {
namespace {

// The file that this code is in. Of a program the loader knows only argv[0], which need not say
// where it lies.
std::filesystem::path own_file() {
  Dl_info self{};
  if (dladdr(reinterpret_cast<const void*>(&load_module_entry), &self) == 0) return {};
  const std::filesystem::path path = self.dli_fname;
  if (path.has_parent_path()) return path;
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error);
}

std::vector<std::string> candidates(const std::string& asked, const char* file_name) {
  if (!asked.empty()) return {asked};
  std::vector<std::string> paths;
  if (const std::filesystem::path folder = own_file().parent_path(); !folder.empty()) {
    for (const char* from_here : {"", "../lib", "../lib64"}) {
      paths.push_back((folder / from_here / file_name).string());
    }
  }
  paths.emplace_back(file_name);
  return paths;
}

}  // namespace

void* load_module_entry(const std::string& asked, const char* file_name, const char* entry,
                        bool is_global, std::string& why) {
  bool is_there = false;
  for (const std::string& path : candidates(asked, file_name)) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | (is_global ? RTLD_GLOBAL : RTLD_LOCAL));
    if (handle == nullptr) {
      if (!is_there) why = dlerror();
      is_there = is_there || std::filesystem::exists(path);
      continue;
    }
    if (void* address = dlsym(handle, entry)) return address;
    why = path + " has no " + entry;
  }
  return nullptr;
}

}  // namespace switchyard
