// SPDX-License-Identifier: Apache-2.0

#include "machine.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include <fmt/format.h>
#include <hwy/highway.h>

#include "switchyard/error.h"

#include "core/memory.h"
#include "transport/shared_memory.h"

namespace switchyard::cli {
namespace {

namespace fs = std::filesystem;

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Returns the value after `name` and a colon in a file of such lines; empty: there is none.
std::string value_in(const char* path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const std::size_t colon = line.find(':');
    if (colon == line.npos || line.rfind(name, 0) != 0) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == line.npos ? "" : line.substr(begin);
  }
  return {};
}

std::string processor_name() {
  const std::string name = value_in("/proc/cpuinfo", "model name");
  return name.empty() ? "unknown processor" : name;
}

int num_usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

int num_numa_nodes() {
  int count = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/sys/devices/system/node", ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.rfind("node", 0) == 0 && name.find_first_of("0123456789") == 4) ++count;
  }
  return count;
}

// Returns the best target that this program was compiled for and this processor supports.
std::string vector_target() {
  const std::int64_t usable = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(usable & -usable);
}

std::vector<std::string> matrix_units() {
  std::istringstream flags(value_in("/proc/cpuinfo", "flags"));
  std::vector<std::string> found;
  for (std::string flag; flags >> flag;) {
    for (const char* wanted :
         {"avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8"}) {
      if (flag == wanted) found.push_back(flag);
    }
  }
  return found;
}

std::optional<std::int64_t> memory_limit() {
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    std::int64_t bytes = 0;
    std::istringstream line(first_line(path));
    constexpr std::int64_t kNoLimit = std::int64_t{1} << 60;  // cgroup v1: huge when unlimited
    if (line >> bytes && bytes < kNoLimit) return bytes;
  }
  return std::nullopt;
}

std::optional<std::int64_t> limit_of(__rlimit_resource_t resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return static_cast<std::int64_t>(limit.rlim_cur);
}

std::string shared_memory_obstacle() {
  try {
    constexpr std::size_t kBytes = 4096;
    const Mapping mapping(make_shared_memory("switchyard doctor", kBytes), kBytes);
    mapping.data()[0] = std::byte{1};
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

std::string in_path(const std::string& program) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string file = folder + "/" + program;
    if (access(file.c_str(), X_OK) == 0) return file;
  }
  return {};
}

// The line reads "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  ..."; the open kernel
// modules have other words before the number.
std::string nvidia_driver() {
  std::istringstream words(first_line("/proc/driver/nvidia/version"));
  for (std::string word; words >> word;) {
    if (word.find('.') != word.npos && word.find_first_not_of("0123456789.") == word.npos) {
      return word;
    }
  }
  return first_line("/sys/module/nvidia/version");
}

bool has_nvidia_devices() {
  for (int i = 0; i < 16; ++i) {
    if (access(fmt::format("/dev/nvidia{}", i).c_str(), F_OK) == 0) return true;
  }
  return false;
}

}  // namespace

std::string processor_text() {
  const unsigned cores = std::thread::hardware_concurrency();
  return fmt::format("{}, {} core{}", processor_name(), cores, cores == 1 ? "" : "s");
}

std::string bytes_text(std::int64_t bytes) {
  constexpr std::array<const char*, 4> kUnits{"B", "KiB", "MiB", "GiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

MachineFacts describe_machine() {
  MachineFacts facts;
  utsname name{};
  if (uname(&name) == 0) {
    facts.host = name.nodename;
    facts.system = fmt::format("{} {}, {}", name.sysname, name.release, name.machine);
  }
  facts.processor = processor_name();
  facts.num_cores = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  facts.num_usable_cores = num_usable_cores();
  facts.num_numa_nodes = num_numa_nodes();
  facts.vector_target = vector_target();
  facts.matrix_units = matrix_units();
  facts.memory_bytes = std::int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  facts.available_bytes = static_cast<std::int64_t>(available_memory_bytes());
  facts.memory_limit = memory_limit();
  facts.max_locked_bytes = limit_of(RLIMIT_MEMLOCK);
  facts.max_open_files = limit_of(RLIMIT_NOFILE).value_or(std::int64_t{1} << 30);
  facts.shared_memory_obstacle = shared_memory_obstacle();
  facts.mpirun = in_path("mpirun");
  facts.has_nvidia_devices = has_nvidia_devices();
  facts.nvidia_driver = nvidia_driver();
  return facts;
}

}  // namespace switchyard::cli
