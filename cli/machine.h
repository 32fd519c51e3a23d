// SPDX-License-Identifier: Apache-2.0
//
// machine.h: what the operating system says about the computer, for reports.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace switchyard::cli {

/// For example "AMD EPYC, 2 cores".
std::string processor_text();

/// With a unit that fits: "64 B", "1.5 GiB".
std::string bytes_text(std::int64_t bytes);

struct MachineFacts {
  std::string host;
  std::string system;     ///< kernel and its version
  std::string processor;  ///< its name
  int num_cores = 0;      ///< of the machine
  int num_usable_cores = 0;
  int num_numa_nodes = 0;                 ///< 0: unknown
  std::string vector_target;              ///< what the wide functions use, as Highway names it
  std::vector<std::string> matrix_units;  ///< of oneDNN's choice: "avx512_bf16", "amx_bf16", ...
  std::int64_t memory_bytes = 0;
  std::int64_t available_bytes = 0;              ///< 0: unknown
  std::optional<std::int64_t> memory_limit;      ///< of the control group
  std::optional<std::int64_t> max_locked_bytes;  ///< RLIMIT_MEMLOCK; absent: no limit
  std::int64_t max_open_files = 0;               ///< RLIMIT_NOFILE
  std::string shared_memory_obstacle;            ///< empty: memory without a name works
  std::string mpirun;                            ///< its path; empty: not in PATH
  bool has_nvidia_devices = false;               ///< /dev/nvidia0 or another
  std::string nvidia_driver;                     ///< version of the kernel's module; empty: none
};

MachineFacts describe_machine();

}  // namespace switchyard::cli
