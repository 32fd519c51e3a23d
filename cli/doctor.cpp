// SPDX-License-Identifier: Apache-2.0

#include "doctor.h"

#include <unistd.h>

#include <algorithm>

#include <CLI/CLI.hpp>

#include "switchyard/error.h"
#include "switchyard/version.h"

#include "common_options.h"
#include "core/settings.h"
#include "device/cuda_module.h"
#include "engine/mpi_module.h"
#include "engine/registry.h"
#include "transport/env.h"
#include "transport/socket.h"

namespace switchyard::cli {
namespace {

constexpr std::string_view kPrefix = "SWITCHYARD_";

// The build summary contains "oneDNN 2.6" or "no oneDNN".
std::string onednn_version() {
  const std::string_view summary = build_summary();
  constexpr std::string_view kName = "oneDNN ";
  const std::size_t at = summary.find(kName);
  if (at == summary.npos || summary.find("no oneDNN") != summary.npos) return {};
  const std::size_t begin = at + kName.size();
  return std::string(summary.substr(begin, summary.find_first_of(",)", begin) - begin));
}

std::string launcher() {
  try {
    return discover_ranks().source;
  } catch (const Error& error) {
    return error.what();
  }
}

std::vector<DoctorSetting> settings() {
  std::vector<DoctorSetting> result;
  for (const SettingInfo& info : all_settings()) {
    const SettingValue value = shown_setting(info.name);
    result.push_back({info.name, value.text, switchyard::name_of(value.origin)});
  }
  return result;
}

std::vector<std::string> unknown_variables() {
  std::vector<std::string> names;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string name(text.substr(0, text.find('=')));
    if (name.rfind(kPrefix, 0) != 0) continue;
    const auto known = all_settings();
    if (std::ranges::none_of(known, [&](const SettingInfo& one) { return name == one.name; })) {
      names.push_back(name);
    }
  }
  std::ranges::sort(names);
  return names;
}

DoctorReport examine(const DoctorOptions& options) {
  DoctorReport report;
  report.machine = describe_machine();
  report.why_no_cuda = why_no_cuda();
  if (report.why_no_cuda.empty()) {
    try {
      const std::string heap = setting("SWITCHYARD_HEAP").text;
      report.devices = cuda_module().describe_devices(is_heap(heap) ? heap : "auto");
    } catch (const Error& error) {
      report.why_no_cuda = error.what();
    }
  }
  report.onednn = onednn_version();
  report.hwloc = hwloc_version();
  report.nodes = numa_nodes();
  report.why_no_mpi = why_no_mpi();
  if (report.why_no_mpi.empty()) report.mpi = mpi_module().library();
  report.interfaces = network_interfaces();
  report.store = setting("SWITCHYARD_STORE").text;
  report.num_ranks = options.num_ranks;
  report.binding = setting("SWITCHYARD_BIND").text;
  for (const EngineInfo& engine : all_engines()) report.engines.emplace_back(engine.name);
  report.launcher = launcher();
  report.settings = settings();
  report.unknown_variables = unknown_variables();
  report.findings = find_missing(report);
  return report;
}

}  // namespace

std::vector<std::string> server_hosts(const DoctorReport& report) {
  std::vector<std::string> hosts = reachable_addresses(report.interfaces);
  try {
    const Address store = Address::parse(report.store);
    if (store.kind == Address::Kind::kTcp) hosts.insert(hosts.begin(), store.host);
  } catch (const Error&) {  // a group would say so
  }
  return hosts;
}

CLI::App* add_doctor(CLI::App& app, DoctorOptions& options) {
  CLI::App* verb = app.add_subcommand(
      "doctor", "what this machine and this build offer, and how to get what is missing");
  verb->add_option("--ranks", options.num_ranks, "ranks whose NUMA nodes are shown")
      ->check(CLI::Range(1, kMaxRanks))
      ->capture_default_str();
  add_json(verb, options.json);
  verb->footer("Nothing is changed. The exit code is 0, whatever is missing.");
  return verb;
}

int doctor(const DoctorOptions& options) {
  check_json("doctor", options.json);
  const DoctorReport report = examine(options);
  publish(
      options.json, [&] { return to_text(report); }, [&] { return to_json(report); });
  return 0;
}

}  // namespace switchyard::cli
