// SPDX-License-Identifier: Apache-2.0
//
// machine.h: what the operating system reports about the machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace switchyard::cli {

/// Returns for example "AMD EPYC, 2 cores".
std::string processor_text();

/// Formats bytes with a suitable unit: "64 B", "1.5 GiB".
std::string bytes_text(std::int64_t bytes);

struct MachineFacts {
  std::string host;
  std::string system;     ///< kernel and its version
  std::string processor;  ///< model name
  int num_cores = 0;      ///< in the machine
  int num_usable_cores = 0;
  int num_numa_nodes = 0;     ///< 0: unknown
  std::string vector_target;  ///< SIMD target of the vectorized functions, as Highway names it
  std::vector<std::string> matrix_units;  ///< what oneDNN can use: "avx512_bf16", "amx_bf16", ...
  std::int64_t memory_bytes = 0;
  std::int64_t available_bytes = 0;              ///< 0: unknown
  std::optional<std::int64_t> memory_limit;      ///< limit of the control group
  std::optional<std::int64_t> max_locked_bytes;  ///< RLIMIT_MEMLOCK; absent: no limit
  std::int64_t max_open_files = 0;               ///< RLIMIT_NOFILE
  std::string shared_memory_obstacle;            ///< empty: unnamed shared memory works
  std::string mpirun;                            ///< path; empty: not in PATH
  bool has_nvidia_devices = false;               ///< /dev/nvidia0 or another exists
  std::string nvidia_driver;                     ///< kernel module version; empty: none
};

MachineFacts describe_machine();

}  // namespace switchyard::cli
