// SPDX-License-Identifier: Apache-2.0
//
// Finds what is missing, what that costs and how to get it.

#include <algorithm>

#include <fmt/format.h>

#include "switchyard/error.h"

#include "core/settings.h"
#include "doctor.h"

namespace switchyard::cli {
namespace {

using Findings = std::vector<Finding>;

constexpr std::int64_t kFewOpenFiles = 512;
constexpr std::int64_t kLittleMemory = std::int64_t{1} << 30;
constexpr std::int64_t kMaxTimeoutMs = 86'400'000;
constexpr const char* kHeaps[] = {"auto", "same_process", "vmm", "ipc", "nccl"};

std::string how_to_get_cuda(const MachineFacts& machine, const std::string& why) {
  if (why.find("no NVIDIA driver") == why.npos) {
    return "configure with -DSWITCHYARD_WITH_CUDA=ON (needs nvcc 12.4 or newer), build and install "
           "both from that build";
  }
  if (!machine.nvidia_driver.empty()) {
    return fmt::format(
        "the kernel has driver {}, but CUDA sees no GPU: compare nvidia-smi, look at "
        "CUDA_VISIBLE_DEVICES, start a container with --gpus all; drivers older than 580 do not "
        "serve CUDA 13",
        machine.nvidia_driver);
  }
  return "on a machine with an NVIDIA GPU install its driver; a container needs --gpus all";
}

void add_gpu_findings(const DoctorReport& report, Findings& findings) {
  if (!report.devices) {
    findings.push_back({"no GPU: " + report.why_no_cuda,
                        "everything runs on the processor; nothing else is lost",
                        how_to_get_cuda(report.machine, report.why_no_cuda)});
    return;
  }
  const DeviceFacts& devices = *report.devices;
  if (devices.processes.kind.empty()) {
    findings.push_back(
        {"GPUs of processes cannot share memory: " + devices.processes.why,
         "ranks that are processes exchange through host memory only",
         "unset SWITCHYARD_HEAP if it is set; see nvidia-smi topo -p2p r; in a virtual "
         "machine pass the NVSwitches or all GPUs of a board through together"});
  }
  const std::string how_to_get_nccl =
      "install NCCL 2.28 or newer (libnccl2 of NVIDIA's repository, or pip install "
      "nvidia-nccl-cu13 and its folder in LD_LIBRARY_PATH)";
  if (!devices.nccl_obstacle.empty()) {
    findings.push_back({"no NCCL windows: " + devices.nccl_obstacle,
                        "heap nccl, and NCCL as the baseline of benchmarks; the other heaps work",
                        how_to_get_nccl});
  }
  if (!devices.hosts_obstacle.empty()) {
    findings.push_back({"nothing between GPUs of several hosts: " + devices.hosts_obstacle,
                        "exchanges between them; those on the GPUs of one host work",
                        how_to_get_nccl});
  }
  if (devices.driver_cuda < devices.runtime_cuda) {
    findings.push_back({fmt::format("the driver is of CUDA {}, this build of CUDA {}",
                                    cuda_version_text(devices.driver_cuda),
                                    cuda_version_text(devices.runtime_cuda)),
                        "nothing within one major version; across two of them GPUs cannot be used",
                        "install a newer driver"});
  }
}

void add_machine_findings(const MachineFacts& machine, Findings& findings) {
  if (!machine.shared_memory_obstacle.empty()) {
    findings.push_back(
        {"shared memory without a name: " + machine.shared_memory_obstacle,
         "engine shm: ranks cannot be processes; threads work",
         "allow memfd_create in the sandbox (seccomp profile), raise the memory limit"});
  }
  if (machine.num_usable_cores == 1) {
    findings.push_back({"one core", "ranks take turns: right, but slow",
                        "give the container more cores (--cpus), or the job (srun -c, taskset)"});
  }
  if (machine.max_open_files < kFewOpenFiles) {
    findings.push_back({fmt::format("{} open files allowed", machine.max_open_files),
                        "a rank keeps a socket to each peer, and more while windows are made",
                        "ulimit -n 4096"});
  }
  if (machine.available_bytes > 0 && machine.available_bytes < kLittleMemory) {
    findings.push_back({fmt::format("{} of memory are left", bytes_text(machine.available_bytes)),
                        "windows of prefill size are refused", "end what uses the memory"});
  }
}

void add_part_findings(const DoctorReport& report, Findings& findings) {
  if (report.onednn.empty()) {
    findings.push_back({"oneDNN is not in this build",
                        "experts \"onednn\": \"exact\" gives results too, much slower",
                        "apt install libdnnl-dev, configure with -DSWITCHYARD_WITH_ONEDNN=ON and "
                        "build again; for a wheel see "
                        "docs/python.md"});
  }
  if (report.hwloc.empty()) {
    findings.push_back({"hwloc is not in this build",
                        "ranks that our launcher starts are not bound to NUMA nodes; on a machine "
                        "with one node nothing",
                        "apt install libhwloc-dev, configure with -DSWITCHYARD_WITH_HWLOC=ON and "
                        "build again; for a wheel see "
                        "docs/python.md"});
  }
  if (report.mpi.empty()) {
    findings.push_back({"no MPI: " + report.why_no_mpi,
                        "ranks on processors of several hosts cannot exchange rows; those of one "
                        "host can",
                        "apt install libopenmpi-dev openmpi-bin, configure and build again"});
  }
  if (report.machine.mpirun.empty()) {
    findings.push_back(
        {"no mpirun in PATH",
         "starting ranks by mpirun and the MPI baseline of benchmarks; switchyard run "
         "--ranks, torchrun and srun start ranks as well",
         "apt install openmpi-bin libopenmpi-dev"});
  }
}

// Returns why the library would refuse this value when it uses it; empty: it would not.
std::string objection_to(const DoctorSetting& one, const DoctorReport& report) {
  if (one.name == "SWITCHYARD_TIMEOUT_MS") {
    try {
      setting_integer(one.name, 1, kMaxTimeoutMs);
    } catch (const Error& error) {
      return error.what();
    }
  }
  const auto is_engine = [&] { return std::ranges::count(report.engines, one.value) > 0; };
  if (one.name == "SWITCHYARD_ENGINE" && one.value != "auto" && !is_engine()) {
    return fmt::format("setting SWITCHYARD_ENGINE is \"{}\", must be auto, {}", one.value,
                       fmt::join(report.engines, ", "));
  }
  if (one.name == "SWITCHYARD_HEAP" && !is_heap(one.value)) {
    return fmt::format("setting SWITCHYARD_HEAP is \"{}\", must be {}", one.value,
                       fmt::join(kHeaps, ", "));
  }
  if (one.name == "SWITCHYARD_BIND" && one.value != "numa" && one.value != "none") {
    return fmt::format("setting SWITCHYARD_BIND is \"{}\", must be numa or none", one.value);
  }
  return {};
}

// What the library refuses while it has this value.
const char* cost_of(const std::string& setting_name) {
  if (setting_name == "SWITCHYARD_HEAP") return "every exchange between GPUs fails";
  if (setting_name == "SWITCHYARD_BIND")
    return "every command that starts processes as ranks fails";
  return "every command and program that makes a group fails";
}

void add_setting_findings(const DoctorReport& report, Findings& findings) {
  for (const DoctorSetting& one : report.settings) {
    const std::string objection = objection_to(one, report);
    if (objection.empty()) continue;
    findings.push_back({objection, cost_of(one.name), "unset " + one.name});
  }
  for (const std::string& name : report.unknown_variables) {
    findings.push_back({name + " is set, but there is no such setting", "it has no effect",
                        "look for the name in the list above"});
  }
}

}  // namespace

bool is_heap(std::string_view name) { return std::ranges::count(kHeaps, name) > 0; }

std::vector<Finding> find_missing(const DoctorReport& report) {
  Findings findings;
  add_setting_findings(report, findings);
  add_machine_findings(report.machine, findings);
  add_gpu_findings(report, findings);
  add_part_findings(report, findings);
  return findings;
}

}  // namespace switchyard::cli
