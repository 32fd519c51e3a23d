// SPDX-License-Identifier: Apache-2.0

#include "core/module_file.h"

#include <dlfcn.h>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "switchyard/version.h"

#include "core/log.h"
#include "core/settings.h"
#include "core/text.h"

namespace switchyard {
namespace {

constexpr std::size_t kMaxPathBytes = 160;

// What the loader says, most often of the path with which it begins.
std::string reason_of(const std::string& path, std::string_view text) {
  if (!text.starts_with(path)) return std::string(text);
  return shorten(path, kMaxPathBytes) + std::string(text.substr(path.size()));
}

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

void* load_module_entry(const ModuleFile& file, std::string& why) {
  bool is_there = false;
  std::string reason;
  for (const std::string& path : candidates(setting(file.setting).text, file.name)) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | (file.is_global ? RTLD_GLOBAL : RTLD_LOCAL));
    if (handle == nullptr) {
      if (!is_there) reason = reason_of(path, dlerror());
      std::error_code ignored;
      is_there = is_there || std::filesystem::exists(path, ignored);
      continue;
    }
    if (void* address = dlsym(handle, file.entry)) {
      log(LogLevel::kInfo, "module", "{} module: {}", file.title, path);
      return address;
    }
    reason = fmt::format("{} has no {}", shorten(path, kMaxPathBytes), file.entry);
  }
  why = fmt::format("the {} module is missing ({}); {} or set {} to its path", file.title, reason,
                    file.how_to_get, file.setting);
  log(LogLevel::kInfo, "module", "{}", why);
  return nullptr;
}

std::string why_not_this_version(const ModuleFile& file, const char* module_version) {
  if (std::string(module_version) == version()) return "";
  return fmt::format(
      "the {} module is of version {}, this library of {}; install both from one build", file.title,
      module_version, version());
}

}  // namespace switchyard
