// SPDX-License-Identifier: Apache-2.0

#include "core/memory.h"

#include <fstream>
#include <limits>
#include <string>

#include "core/fail.h"

namespace switchyard {

std::size_t available_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::size_t kilobytes = 0;
  while (file >> name >> kilobytes) {
    if (name == "MemAvailable:") return kilobytes * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

void require_memory(std::string_view what, std::size_t bytes) {
  const std::size_t available = available_memory_bytes();
  constexpr double kMiB = 1 << 20;
  require(available == 0 || bytes <= available, Errc::kOutOfMemory,
          "{} needs {:.1f} MiB, but this host has {:.1f} MiB available", what,
          static_cast<double>(bytes) / kMiB, static_cast<double>(available) / kMiB);
}

}  // namespace switchyard
