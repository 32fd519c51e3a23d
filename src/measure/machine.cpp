// SPDX-License-Identifier: Apache-2.0

#include "measure/machine.h"

#include <sys/utsname.h>

#include <fstream>
#include <thread>

#include <fmt/format.h>

namespace switchyard::measure {

std::string processor() {
  std::string model = "unknown processor";
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    const std::size_t colon = line.find(": ");
    if (line.rfind("model name", 0) != 0 || colon == line.npos) continue;
    model = line.substr(colon + 2);
    break;
  }
  const unsigned cores = std::thread::hardware_concurrency();
  return fmt::format("{}, {} core{}", model, cores, cores == 1 ? "" : "s");
}

std::string operating_system() {
  utsname name{};
  if (uname(&name) != 0) return "unknown";
  return fmt::format("{} {}", name.sysname, name.release);
}

std::int64_t available_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string name; meminfo >> name;) {
    std::int64_t kib = 0;
    meminfo >> kib;
    if (name == "MemAvailable:") return kib * 1024;
    meminfo.ignore(64, '\n');
  }
  return 0;
}

}  // namespace switchyard::measure
