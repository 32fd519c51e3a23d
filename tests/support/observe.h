// SPDX-License-Identifier: Apache-2.0
//
// observe.h: what a test sees from outside: time that has passed, whole files, open descriptors.
#pragma once

#include <cstdint>
#include <dirent.h>
#include <fstream>
#include <iterator>
#include <string>

#include "core/clock.h"

namespace switchyard::test {

inline double seconds_since(std::int64_t start_ns) {
  return static_cast<double>(now_ns() - start_ns) * 1e-9;
}

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline int num_entries(const char* folder) {
  DIR* directory = opendir(folder);
  int count = 0;
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

inline int num_open_files() { return num_entries("/proc/self/fd"); }

}  // namespace switchyard::test
