// SPDX-License-Identifier: Apache-2.0
//
// doctor.h: the verb `doctor`: what this machine and this build offer, what is missing, what that
// costs and how to get it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "device/device_facts.h"
#include "machine.h"

namespace switchyard::cli {

struct DoctorOptions {
  bool json = false;
};

/// Something that is missing or looks wrong.
struct Finding {
  std::string what;
  std::string costs;
  std::string remedy;
};

struct DoctorSetting {
  std::string name;
  std::string value;  ///< a secret is not shown
  std::string origin;
};

struct DoctorReport {
  MachineFacts machine;
  std::string why_no_cuda;  ///< empty: there are `devices`
  std::optional<DeviceFacts> devices;
  std::string onednn;  ///< its version; empty: not in this build
  std::vector<std::string> engines;
  std::string launcher;  ///< who started this process as a rank; "none"
  std::vector<DoctorSetting> settings;
  std::vector<std::string> unknown_variables;  ///< SWITCHYARD_ names that are no settings
  std::vector<Finding> findings;
};

CLI::App* add_doctor(CLI::App& app, DoctorOptions& options);

/// Returns the exit code: 0, whatever is missing.
int doctor(const DoctorOptions& options);

/// Whether it may be the value of SWITCHYARD_HEAP.
bool is_heap(std::string_view name);

/// Of the report's facts; pure.
std::vector<Finding> find_missing(const DoctorReport& report);

std::string to_text(const DoctorReport& report);
std::string to_json(const DoctorReport& report);

/// "13.0" of 13000.
std::string cuda_version_text(int version);
/// "2.28.9" of 22809.
std::string nccl_version_text(int version);
std::string_view name_of(GpuLink link);

}  // namespace switchyard::cli
