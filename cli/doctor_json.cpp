// SPDX-License-Identifier: Apache-2.0

#include <nlohmann/json.hpp>

#include "switchyard/version.h"

#include "doctor.h"

namespace switchyard::cli {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const MachineFacts& machine) {
  Json one;
  one["host"] = machine.host;
  one["system"] = machine.system;
  one["processor"] = machine.processor;
  one["num_cores"] = machine.num_cores;
  one["num_usable_cores"] = machine.num_usable_cores;
  one["num_numa_nodes"] = machine.num_numa_nodes;
  one["vector_target"] = machine.vector_target;
  one["matrix_units"] = machine.matrix_units;
  one["memory_bytes"] = machine.memory_bytes;
  one["available_bytes"] = machine.available_bytes;
  one["memory_limit_bytes"] = machine.memory_limit ? Json(*machine.memory_limit) : Json();
  one["max_locked_bytes"] = machine.max_locked_bytes ? Json(*machine.max_locked_bytes) : Json();
  one["max_open_files"] = machine.max_open_files;
  one["shared_memory_obstacle"] = machine.shared_memory_obstacle;
  one["mpirun"] = machine.mpirun;
  return one;
}

Json json_of(const GpuFacts& gpu) {
  Json one;
  one["name"] = gpu.name;
  one["uuid"] = gpu.uuid;
  one["pci"] = gpu.pci;
  one["memory_bytes"] = gpu.memory_bytes;
  one["free_bytes"] = gpu.free_bytes < 0 ? Json() : Json(gpu.free_bytes);
  one["num_sms"] = gpu.num_sms;
  one["compute"] = std::to_string(gpu.compute_major) + "." + std::to_string(gpu.compute_minor);
  one["num_nvlinks"] = gpu.num_nvlinks < 0 ? Json() : Json(gpu.num_nvlinks);
  return one;
}

Json json_of(const HeapPlan& plan) {
  Json one;
  one["kind"] = plan.kind.empty() ? Json() : Json(plan.kind);
  one["why"] = plan.why;
  return one;
}

Json json_of(const DeviceFacts& devices) {
  Json one;
  one["driver"] = devices.driver_version;
  one["driver_cuda"] = cuda_version_text(devices.driver_cuda);
  one["runtime_cuda"] = cuda_version_text(devices.runtime_cuda);
  one["gpus"] = Json::array();
  for (const GpuFacts& gpu : devices.gpus) one["gpus"].push_back(json_of(gpu));
  one["links"] = Json::array();
  for (const auto& row : devices.links) {
    Json names = Json::array();
    for (const GpuLink link : row) names.push_back(name_of(link));
    one["links"].push_back(std::move(names));
  }
  const bool has_nccl = devices.nccl_version != 0;
  one["nccl"] = has_nccl ? Json(nccl_version_text(devices.nccl_version)) : Json();
  one["nccl_obstacle"] = devices.nccl_obstacle;
  one["hosts_obstacle"] = devices.hosts_obstacle;
  one["heap_of_processes"] = json_of(devices.processes);
  one["heap_of_threads"] = json_of(devices.threads);
  return one;
}

Json network_of(const DoctorReport& report) {
  Json one;
  one["interfaces"] = Json::array();
  for (const NetworkInterface& each : report.interfaces) {
    one["interfaces"].push_back(
        {{"name", each.name},
         {"is_up", each.is_up},
         {"is_loopback", each.is_loopback},
         {"speed_mbit", each.speed_mbit > 0 ? Json(each.speed_mbit) : Json()},
         {"addresses", each.addresses}});
  }
  one["store"] = report.store.empty() ? Json() : Json(report.store);
  one["server_hosts"] = server_hosts(report);
  return one;
}

Json binding_of(const DoctorReport& report) {
  Json one;
  one["setting"] = report.binding;
  one["nodes"] = Json::array();
  for (const NumaNode& node : report.nodes) {
    one["nodes"].push_back({{"number", node.number}, {"cores", node.cores}});
  }
  one["ranks"] = Json::array();
  if (report.binding != "numa" || report.nodes.empty()) return one;
  for (int rank = 0; rank < report.num_ranks; ++rank) {
    const std::size_t node = node_of_rank(rank, report.num_ranks, report.nodes.size());
    one["ranks"].push_back(report.nodes[node].number);
  }
  return one;
}

}  // namespace

std::string to_json(const DoctorReport& report) {
  Json json;
  json["version"] = version();
  json["build"] = build_summary();
  json["machine"] = json_of(report.machine);
  json["cuda"] = report.devices ? json_of(*report.devices) : Json();
  json["why_no_cuda"] = report.why_no_cuda;
  json["engines"] = report.engines;
  json["onednn"] = report.onednn.empty() ? Json() : Json(report.onednn);
  json["hwloc"] = report.hwloc.empty() ? Json() : Json(report.hwloc);
  json["mpi"] = report.mpi.empty() ? Json() : Json(report.mpi);
  json["why_no_mpi"] = report.why_no_mpi;
  json["binding"] = binding_of(report);
  json["network"] = network_of(report);
  json["launcher"] = report.launcher;
  json["settings"] = Json::array();
  for (const DoctorSetting& one : report.settings) {
    json["settings"].push_back({{"name", one.name}, {"value", one.value}, {"origin", one.origin}});
  }
  json["unknown_variables"] = report.unknown_variables;
  json["missing"] = Json::array();
  for (const Finding& one : report.findings) {
    json["missing"].push_back({{"what", one.what}, {"costs", one.costs}, {"get_it", one.remedy}});
  }
  // Host names may contain any byte, so invalid UTF-8 is replaced.
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace switchyard::cli
