// SPDX-License-Identifier: Apache-2.0

#include "core/memory.h"

#include <fstream>
#include <limits>
#include <string>

#include "core/fail.h"

namespace switchyard {
namespace {

constexpr double kMiB = 1 << 20;

// A line of /proc/meminfo, for example "MemTotal:".
std::size_t memory_info(std::string_view wanted) {
  std::ifstream file("/proc/meminfo");
  std::string name;
  std::size_t kilobytes = 0;
  while (file >> name >> kilobytes) {
    if (name == wanted) return kilobytes * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return 0;
}

}  // namespace

std::size_t available_memory_bytes() { return memory_info("MemAvailable:"); }

std::size_t total_memory_bytes() { return memory_info("MemTotal:") + memory_info("SwapTotal:"); }

void require_memory(std::string_view what, std::size_t bytes) {
  const std::size_t available = available_memory_bytes();
  require(available == 0 || bytes <= available, Errc::kOutOfMemory,
          "{} needs {:.1f} MiB, but this host has {:.1f} MiB available", what,
          static_cast<double>(bytes) / kMiB, static_cast<double>(available) / kMiB);
}

void require_reservation(std::string_view what, std::size_t bytes) {
  const std::size_t total = total_memory_bytes();
  require(total == 0 || bytes <= total, Errc::kOutOfMemory,
          "{} reserves {:.1f} MiB, but this host has {:.1f} MiB of memory and swap", what,
          static_cast<double>(bytes) / kMiB, static_cast<double>(total) / kMiB);
}

}  // namespace switchyard
