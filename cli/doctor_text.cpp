// SPDX-License-Identifier: Apache-2.0
//
// The report of doctor as text: sections of aligned lines, then the findings.

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "switchyard/version.h"

#include "core/text.h"
#include "doctor.h"

namespace switchyard::cli {
namespace {

using Row = std::vector<std::string>;

constexpr std::size_t kMaxValueBytes = 160;

// Pads each column to its widest cell, with two spaces between columns.
std::string aligned(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line = " ";
    for (std::size_t c = 0; c < row.size(); ++c) line += fmt::format(" {:<{}} ", row[c], widths[c]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string section(const char* title, const std::vector<Row>& rows) {
  return fmt::format("{}\n{}\n", title, aligned(rows));
}

std::string count_text(int count, const char* noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string cores_text(const MachineFacts& machine) {
  std::string text = count_text(machine.num_cores, "core");
  if (machine.num_usable_cores != machine.num_cores) {
    text += fmt::format(" ({} for this process)", machine.num_usable_cores);
  }
  if (machine.num_numa_nodes > 0) text += ", " + count_text(machine.num_numa_nodes, "NUMA node");
  return text;
}

std::string memory_text(const MachineFacts& machine) {
  std::string text = bytes_text(machine.memory_bytes);
  if (machine.available_bytes > 0)
    text += ", " + bytes_text(machine.available_bytes) + " available";
  if (machine.memory_limit) text += ", limit " + bytes_text(*machine.memory_limit);
  return text;
}

std::string machine_section(const MachineFacts& machine) {
  const std::string locked =
      machine.max_locked_bytes ? bytes_text(*machine.max_locked_bytes) : "any amount";
  const std::string shared = machine.shared_memory_obstacle.empty()
                                 ? "works (memfd)"
                                 : "does not work: " + machine.shared_memory_obstacle;
  return section(
      "machine",
      {{"host", machine.host + ", " + machine.system},
       {"processor", machine.processor},
       {"cores", cores_text(machine)},
       {"vectors", fmt::format("{}; for oneDNN: {}", machine.vector_target,
                               fmt::join(machine.matrix_units, " "))},
       {"memory", memory_text(machine)},
       {"shared memory", shared},
       {"limits", fmt::format("{} locked memory, {} open files", locked, machine.max_open_files)}});
}

std::string heap_text(const HeapPlan& plan) {
  return plan.kind.empty() ? "none: " + plan.why : fmt::format("{}: {}", plan.kind, plan.why);
}

std::string hosts_text(const DeviceFacts& devices) {
  return devices.hosts_obstacle.empty() ? "messages over NCCL, which must be the same on every host"
                                        : "nothing: " + devices.hosts_obstacle;
}

std::vector<Row> gpu_rows(const DeviceFacts& devices) {
  std::vector<Row> rows{{"GPU", "name", "memory", "free", "SMs", "compute", "NVLinks", "PCI"}};
  for (std::size_t i = 0; i < devices.gpus.size(); ++i) {
    const GpuFacts& gpu = devices.gpus[i];
    rows.push_back({std::to_string(i), gpu.name, bytes_text(gpu.memory_bytes),
                    gpu.free_bytes < 0 ? "?" : bytes_text(gpu.free_bytes),
                    std::to_string(gpu.num_sms),
                    fmt::format("{}.{}", gpu.compute_major, gpu.compute_minor),
                    gpu.num_nvlinks < 0 ? "?" : std::to_string(gpu.num_nvlinks), gpu.pci});
  }
  return rows;
}

std::vector<Row> link_rows(const DeviceFacts& devices) {
  std::vector<Row> rows(1, Row{"from \\ to"});
  for (std::size_t to = 0; to < devices.links.size(); ++to) rows[0].push_back(std::to_string(to));
  for (std::size_t from = 0; from < devices.links.size(); ++from) {
    Row row{std::to_string(from)};
    for (const GpuLink link : devices.links[from]) row.emplace_back(name_of(link));
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string gpu_section(const DoctorReport& report) {
  if (!report.devices) return section("GPUs", {{"none", report.why_no_cuda}});
  const DeviceFacts& devices = *report.devices;
  const std::string driver =
      devices.driver_version.empty() ? "of unknown version" : devices.driver_version;
  std::string nccl =
      devices.nccl_version == 0 ? "not found" : nccl_version_text(devices.nccl_version);
  if (!devices.nccl_obstacle.empty()) nccl += ", no windows: " + devices.nccl_obstacle;
  std::string text = section("GPUs", gpu_rows(devices));
  if (devices.gpus.size() > 1) {
    text += section("links (nvlink: with atomics; pcie: without; none: no peer access)",
                    link_rows(devices));
  }
  return text + section("CUDA", {{"driver", fmt::format("{}, up to CUDA {}", driver,
                                                        cuda_version_text(devices.driver_cuda))},
                                 {"runtime", cuda_version_text(devices.runtime_cuda)},
                                 {"NCCL", nccl},
                                 {"between hosts", hosts_text(devices)},
                                 {"heap of processes", heap_text(devices.processes)},
                                 {"heap of threads", heap_text(devices.threads)}});
}

std::string node_text(const NumaNode& node) {
  const std::vector<std::int32_t> cores(node.cores.begin(), node.cores.end());
  return format_ranges(cores);
}

std::string binding_section(const DoctorReport& report) {
  const auto unbound = [](const std::string& why) {
    return section("ranks that our launcher starts", {{"not bound", why}});
  };
  if (report.binding == "none") return unbound("SWITCHYARD_BIND is none");
  if (report.hwloc.empty()) return unbound("hwloc is not in this build");
  if (report.nodes.empty()) return unbound("the system does not describe its NUMA nodes");
  std::vector<Row> rows{{"rank", "NUMA node", "cores"}};
  for (int rank = 0; rank < report.num_ranks; ++rank) {
    const NumaNode& node = report.nodes[node_of_rank(rank, report.num_ranks, report.nodes.size())];
    rows.push_back({std::to_string(rank), std::to_string(node.number), node_text(node)});
  }
  return section("ranks that our launcher starts", rows);
}

// 10000 as "10 Gbit/s".
std::string speed_text(std::int64_t mbit) {
  if (mbit <= 0) return "?";
  return mbit < 1000 ? fmt::format("{} Mbit/s", mbit)
                     : fmt::format("{} Gbit/s", static_cast<double>(mbit) * 1e-3);
}

std::string network_section(const DoctorReport& report) {
  std::vector<Row> rows{{"interface", "state", "speed", "addresses"}};
  for (const NetworkInterface& one : report.interfaces) {
    rows.push_back({one.name, one.is_up ? "up" : "down", speed_text(one.speed_mbit),
                    fmt::format("{}", fmt::join(one.addresses, " "))});
  }
  const std::vector<std::string> hosts = server_hosts(report);
  const std::string server = hosts.empty()
                                 ? "at 127.0.0.1: no interface has an address for other hosts"
                                 : fmt::format("on every interface; ranks of other hosts try {}",
                                               fmt::join(hosts, ", then "));
  const std::string store = report.store.empty() ? "SWITCHYARD_STORE is not set" : report.store;
  return section("network", rows) +
         section("where rank 0 would listen",
                 {{"ranks meet at", store}, {"server of a group", server}});
}

std::string part_section(const DoctorReport& report) {
  return section("parts",
                 {{"engines", fmt::format("{}", fmt::join(report.engines, ", "))},
                  {"oneDNN", report.onednn.empty() ? "not in this build" : report.onednn},
                  {"hwloc", report.hwloc.empty() ? "not in this build" : report.hwloc},
                  {"MPI", report.mpi.empty() ? "not available" : report.mpi},
                  {"mpirun", report.machine.mpirun.empty() ? "not found" : report.machine.mpirun},
                  {"started by", report.launcher == "none" ? "no launcher" : report.launcher}});
}

std::string setting_section(const DoctorReport& report) {
  std::vector<Row> rows;
  for (const DoctorSetting& one : report.settings) {
    rows.push_back(
        {one.name, one.value.empty() ? "(empty)" : shorten(one.value, kMaxValueBytes), one.origin});
  }
  return section("settings", rows);
}

std::string findings_text(const std::vector<Finding>& findings) {
  if (findings.empty()) return "nothing is missing\n";
  std::string text = "missing\n";
  int number = 0;
  for (const Finding& one : findings) {
    text += fmt::format("  {}. {}\n     costs   {}\n     get it  {}\n", ++number, one.what,
                        one.costs, one.remedy);
  }
  return text;
}

}  // namespace

std::string cuda_version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string nccl_version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string_view name_of(GpuLink link) {
  switch (link) {
    case GpuLink::kSelf: return "self";
    case GpuLink::kNvlink: return "nvlink";
    case GpuLink::kPeer: return "pcie";
    case GpuLink::kNone: break;
  }
  return "none";
}

std::string to_text(const DoctorReport& report) {
  return fmt::format("switchyard {}\n\n", build_summary()) + machine_section(report.machine) +
         binding_section(report) + gpu_section(report) + network_section(report) +
         part_section(report) + setting_section(report) + findings_text(report.findings);
}

}  // namespace switchyard::cli
