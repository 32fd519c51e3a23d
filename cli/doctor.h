// SPDX-License-Identifier: Apache-2.0
//
// doctor.h: the verb `doctor` reports what this machine and this build offer, what is missing, what
// that costs and how to get it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/topology.h"
#include "device/device_facts.h"
#include "machine.h"
#include "transport/network.h"

namespace CLI {
class App;
}

namespace switchyard::cli {

struct DoctorOptions {
  int num_ranks = 2;
  std::string json;  ///< a file, or "-" for stdout; empty: text
};

/// Something that is missing or looks wrong.
struct Finding {
  std::string what;
  std::string costs;
  std::string remedy;
};

struct DoctorSetting {
  std::string name;
  std::string value;  ///< secrets are not shown
  std::string origin;
};

struct DoctorReport {
  MachineFacts machine;
  std::string why_no_cuda;  ///< empty: `devices` is set
  std::optional<DeviceFacts> devices;
  std::string onednn;  ///< version; empty: not in this build
  std::string hwloc;   ///< version; empty: not in this build
  std::vector<NumaNode> nodes;
  std::string mpi;         ///< the MPI library; empty: `why_no_mpi` says why
  std::string why_no_mpi;  ///< the reason of the error that ranks on several hosts get
  int num_ranks = 0;       ///< ranks whose binding is shown
  std::string binding;     ///< SWITCHYARD_BIND
  std::vector<NetworkInterface> interfaces;
  std::string store;  ///< SWITCHYARD_STORE
  std::vector<std::string> engines;
  std::string launcher;  ///< what started this process as a rank, or "none"
  std::vector<DoctorSetting> settings;
  std::vector<std::string> unknown_variables;  ///< SWITCHYARD_ names that are not settings
  std::vector<Finding> findings;
};

CLI::App* add_doctor(CLI::App& app, DoctorOptions& options);

/// Returns the exit code, which is 0 whatever is missing.
int doctor(const DoctorOptions& options);

/// True when `name` is a valid value of SWITCHYARD_HEAP.
bool is_heap(std::string_view name);

/// Derives the findings from the report's facts; a pure function.
std::vector<Finding> find_missing(const DoctorReport& report);

/// Where ranks of other hosts look for the server of a group that rank 0 makes here, in turn.
std::vector<std::string> server_hosts(const DoctorReport& report);

std::string to_text(const DoctorReport& report);
std::string to_json(const DoctorReport& report);

/// Formats 13000 as "13.0".
std::string cuda_version_text(int version);
/// Formats 22809 as "2.28.9".
std::string nccl_version_text(int version);
std::string_view name_of(GpuLink link);

}  // namespace switchyard::cli
