// SPDX-License-Identifier: Apache-2.0
//
// `switchyard doctor` as a user sees it, on a machine with or without GPUs, and what it reports
// about other machines.

#include "doctor.h"

#include <algorithm>
#include <cstdlib>

#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "support/command.h"

namespace switchyard::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

CommandResult doctor(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {SWITCHYARD_CLI, "doctor"});
  return run_command(arguments, 60 * SWITCHYARD_SLOWDOWN);
}

// No file has such a name, and nobody reads a line of it.
TEST(DoctorTest, ModulePathsThatAreTooLongAreCut) {
  for (const char* setting : {"SWITCHYARD_MPI_MODULE", "SWITCHYARD_CUDA_MODULE"}) {
    for (const std::size_t num_bytes : {1000u, 100'000u}) {
      const CommandResult result = run_command(
          {"env", setting + ("=/" + std::string(num_bytes, 'x')), SWITCHYARD_CLI, "doctor"});
      EXPECT_NE(result.exit_code, 3) << result.error.substr(0, 1000);
      EXPECT_THAT(result.output, HasSubstr("settings\n"));
      EXPECT_THAT(result.output,
                  HasSubstr("xxx...: cannot open shared object file: File name too"));
      EXPECT_THAT(result.output, Not(HasSubstr(std::string(200, 'x'))));
    }
  }
}

// A machine with two GPUs on which nothing is missing.
cli::DoctorReport two_gpus() {
  cli::DoctorReport report;
  report.machine.host = "box";
  report.machine.num_cores = report.machine.num_usable_cores = 16;
  report.machine.max_open_files = 4096;
  report.machine.available_bytes = std::int64_t{64} << 30;
  report.machine.mpirun = "/usr/bin/mpirun";
  report.onednn = "2.6.0";
  report.hwloc = "2.9.0";
  report.mpi = "Open MPI v4.1.4";
  report.nodes = {{0, {0, 1, 2, 3, 8}}, {1, {4, 5, 6, 7}}};
  report.num_ranks = 3;
  report.binding = "numa";
  report.engines = {"local", "shm"};
  report.interfaces = {{"lo", true, true, 0, {"127.0.0.1", "::1"}},
                       {"ib0", false, false, 0, {}},
                       {"eth0", true, false, 25000, {"192.0.2.7", "2001:db8::7", "fe80::1%eth0"}},
                       {"eth1", true, false, 100, {"198.51.100.7"}}};
  report.launcher = "none";
  DeviceFacts devices;
  devices.driver_version = "580.65.06";
  devices.driver_cuda = 13000;
  devices.runtime_cuda = 13000;
  for (int i = 0; i < 2; ++i) {
    GpuFacts gpu;
    gpu.name = "NVIDIA H200";
    gpu.memory_bytes = std::int64_t{140} << 30;
    gpu.num_sms = 132;
    gpu.compute_major = 9;
    gpu.num_nvlinks = 18;
    gpu.pci = "0000:1" + std::to_string(i) + ":00.0";
    devices.gpus.push_back(gpu);
  }
  devices.links = {{GpuLink::kSelf, GpuLink::kNvlink}, {GpuLink::kNvlink, GpuLink::kSelf}};
  devices.nccl_version = 22809;
  devices.threads = {"same_process", "threads share addresses"};
  devices.processes = {"vmm", "the driver gives descriptors for memory of every GPU"};
  report.devices = devices;
  return report;
}

std::string whats(const std::vector<cli::Finding>& findings) {
  std::string text;
  for (const cli::Finding& one : findings) {
    EXPECT_FALSE(one.costs.empty()) << one.what;
    EXPECT_FALSE(one.remedy.empty()) << one.what;
    text += one.what + "\n";
  }
  return text;
}

TEST(DoctorTest, GoodReportOnThisMachine) {
  const CommandResult result = doctor({});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(result.output, ::testing::StartsWith("switchyard "));
  for (const char* section :
       {"\nmachine\n", "\nGPUs\n", "\nnetwork\n", "\nparts\n", "\nsettings\n"}) {
    EXPECT_THAT(result.output, HasSubstr(section));
  }
  EXPECT_THAT(result.output, HasSubstr("SWITCHYARD_HEAP "));
  EXPECT_THAT(result.output, HasSubstr("works (memfd)"));
  EXPECT_THAT(result.output, Not(HasSubstr(" \n")));  // no trailing blanks
}

TEST(DoctorTest, JsonIsOneObjectAlone) {
  const CommandResult result = doctor({"--json"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  const nlohmann::json json = nlohmann::json::parse(result.output);
  EXPECT_GE(json["machine"]["num_cores"], 1);
  EXPECT_GT(json["machine"]["memory_bytes"], 1 << 20);
  EXPECT_EQ(json["cuda"].is_null(), json["why_no_cuda"] != "");
  EXPECT_EQ(json["engines"][0], "local");
  EXPECT_EQ(json["mpi"].is_null(), json["why_no_mpi"] != "");
  const auto is_loopback = [](const auto& one) {
    return one["name"] == "lo" && one["is_loopback"];
  };
  EXPECT_TRUE(std::ranges::any_of(json["network"]["interfaces"], is_loopback));
  for (const auto& one : json["missing"]) {
    EXPECT_FALSE(one["what"].get<std::string>().empty());
    EXPECT_FALSE(one["costs"].get<std::string>().empty());
    EXPECT_FALSE(one["get_it"].get<std::string>().empty());
  }
}

TEST(DoctorTest, SettingsComeWithTheirOriginAndSecretsStaySecret) {
  setenv("SWITCHYARD_TIMEOUT_MS", "soon", 1);
  setenv("SWITCHYARD_SECRET", "hush", 1);
  setenv("SWITCHYARD_TIMEOUT", "5", 1);
  const CommandResult result = doctor({"--json"});
  const CommandResult text = doctor({});
  unsetenv("SWITCHYARD_TIMEOUT_MS");
  unsetenv("SWITCHYARD_SECRET");
  unsetenv("SWITCHYARD_TIMEOUT");
  EXPECT_EQ(result.exit_code, 0) << result.error;
  const nlohmann::json json = nlohmann::json::parse(result.output);
  const auto find = [&](const std::string& name) {
    const auto found = std::ranges::find_if(json["settings"],
                                            [&](const auto& one) { return one["name"] == name; });
    return found == json["settings"].end() ? nlohmann::json() : *found;
  };
  EXPECT_EQ(find("SWITCHYARD_TIMEOUT_MS")["value"], "soon");
  EXPECT_EQ(find("SWITCHYARD_TIMEOUT_MS")["origin"], "environment");
  EXPECT_EQ(find("SWITCHYARD_SECRET")["value"], "(set)");
  EXPECT_EQ(find("SWITCHYARD_ENGINE")["origin"], "default");
  EXPECT_EQ(json["unknown_variables"], nlohmann::json::array({"SWITCHYARD_TIMEOUT"}));
  EXPECT_THAT(text.output, HasSubstr("setting SWITCHYARD_TIMEOUT_MS is \"soon\", must be a whole"));
  EXPECT_THAT(text.output, HasSubstr("SWITCHYARD_TIMEOUT is set, but there is no such setting"));
  EXPECT_THAT(result.output + text.output, Not(HasSubstr("hush")));
}

TEST(DoctorTest, MachineThatLacksNothing) {
  cli::DoctorReport report = two_gpus();
  report.findings = cli::find_missing(report);
  EXPECT_EQ(whats(report.findings), "");
  const std::string text = cli::to_text(report);
  EXPECT_THAT(text, HasSubstr("nothing is missing\n"));
  EXPECT_THAT(text, HasSubstr("  GPU  name         memory     free  SMs  compute  NVLinks  PCI\n"
                              "  0    NVIDIA H200  140.0 GiB  ?     132  9.0      18       "
                              "0000:10:00.0\n"));
  EXPECT_THAT(text, HasSubstr("  from \\ to  0       1\n"
                              "  0          self    nvlink\n"
                              "  1          nvlink  self\n"));
  EXPECT_THAT(text, HasSubstr("driver             580.65.06, up to CUDA 13.0\n"));
  EXPECT_THAT(text, HasSubstr("NCCL               2.28.9\n"));
  EXPECT_THAT(text, HasSubstr("between hosts      messages over NCCL, which must be the same"));
  EXPECT_THAT(text, HasSubstr("  rank  NUMA node  cores\n"
                              "  0     0          0-3, 8\n"
                              "  1     0          0-3, 8\n"
                              "  2     1          4-7\n"));
  EXPECT_THAT(text, HasSubstr("heap of processes  vmm: the driver gives descriptors"));
  const nlohmann::json json = nlohmann::json::parse(cli::to_json(report));
  EXPECT_EQ(json["cuda"]["gpus"].size(), 2u);
  EXPECT_EQ(json["binding"]["nodes"][1]["cores"], nlohmann::json::array({4, 5, 6, 7}));
  EXPECT_EQ(json["binding"]["ranks"], nlohmann::json::array({0, 0, 1}));
  EXPECT_EQ(json["cuda"]["links"][0][1], "nvlink");
  EXPECT_EQ(json["cuda"]["heap_of_processes"]["kind"], "vmm");
  EXPECT_EQ(json["cuda"]["hosts_obstacle"], "");
  EXPECT_TRUE(json["cuda"]["gpus"][0]["free_bytes"].is_null());
}

TEST(DoctorTest, NetworkSaysWhereRanksOfOtherHostsLook) {
  cli::DoctorReport report = two_gpus();
  EXPECT_THAT(cli::to_text(report),
              HasSubstr("network\n"
                        "  interface  state  speed       addresses\n"
                        "  lo         up     ?           127.0.0.1 ::1\n"
                        "  ib0        down   ?\n"
                        "  eth0       up     25 Gbit/s   192.0.2.7 2001:db8::7 fe80::1%eth0\n"
                        "  eth1       up     100 Mbit/s  198.51.100.7\n"));
  EXPECT_THAT(cli::to_text(report),
              HasSubstr("ranks meet at      SWITCHYARD_STORE is not set\n"
                        "  server of a group  on every interface; ranks of other hosts try "
                        "192.0.2.7, then 198.51.100.7, then 2001:db8::7\n"));
  const nlohmann::json network = nlohmann::json::parse(cli::to_json(report))["network"];
  EXPECT_EQ(network["interfaces"][2]["speed_mbit"], 25000);
  EXPECT_TRUE(network["interfaces"][0]["speed_mbit"].is_null());
  EXPECT_FALSE(network["interfaces"][1]["is_up"]);
  EXPECT_TRUE(network["store"].is_null());

  report.store = "tcp://node0:29511";
  report.interfaces.resize(2);
  EXPECT_THAT(cli::server_hosts(report), ::testing::ElementsAre("node0"));
  report.store = "unix:@here";
  EXPECT_THAT(cli::to_text(report), HasSubstr("server of a group  at 127.0.0.1: no interface"));
}

TEST(DoctorTest, EveryLackIsNamed) {
  cli::DoctorReport report = two_gpus();
  report.devices->processes = {"", "GPU 0 of rank 0 cannot address the memory of GPU 1 of rank 1"};
  report.devices->nccl_obstacle = "libnccl.so.2 cannot be loaded";
  report.devices->hosts_obstacle = report.devices->nccl_obstacle;
  report.devices->driver_cuda = 12020;
  report.hwloc.clear();
  report.machine.shared_memory_obstacle = "memfd_create: Operation not permitted";
  report.machine.num_usable_cores = 1;
  report.machine.max_open_files = 64;
  report.machine.available_bytes = 1 << 20;
  report.machine.mpirun.clear();
  report.onednn.clear();
  report.settings = {{"SWITCHYARD_ENGINE", "sm", "environment"},
                     {"SWITCHYARD_HEAP", "vm", "environment"},
                     {"SWITCHYARD_BIND", "core", "environment"}};
  const std::string text = whats(cli::find_missing(report));
  for (const char* phrase :
       {"GPUs of processes cannot share memory: GPU 0", "no NCCL windows: libnccl.so.2",
        "nothing between GPUs of several hosts: libnccl.so.2",
        "the driver is of CUDA 12.2, this build of CUDA 13.0", "memfd_create", "one core",
        "64 open files allowed", "1.0 MiB of memory are left", "no mpirun", "oneDNN is not",
        "hwloc is not", "setting SWITCHYARD_ENGINE is \"sm\", must be auto, local, shm",
        "setting SWITCHYARD_BIND is \"core\", must be numa or none",
        "setting SWITCHYARD_HEAP is \"vm\", must be auto, same_process, vmm, ipc, nccl"}) {
    EXPECT_THAT(text, HasSubstr(phrase));
  }
}

TEST(DoctorTest, RemedyDependsOnWhyThereIsNoGpu) {
  cli::DoctorReport report = two_gpus();
  report.devices.reset();
  const auto remedy = [&] { return cli::find_missing(report).at(0).remedy; };
  report.why_no_cuda = "the CUDA module is missing (...)";
  EXPECT_THAT(remedy(), HasSubstr("-DSWITCHYARD_WITH_CUDA=ON"));
  report.why_no_cuda = "no NVIDIA driver or no GPU on this machine";
  EXPECT_THAT(remedy(), HasSubstr("install its driver"));
  report.machine.nvidia_driver = "470.82.01";
  EXPECT_THAT(remedy(), HasSubstr("the kernel has driver 470.82.01, but CUDA sees no GPU"));
}

TEST(DoctorTest, RanksThatAreNotBoundSayWhy) {
  cli::DoctorReport report = two_gpus();
  report.binding = "none";
  EXPECT_THAT(cli::to_text(report), HasSubstr("not bound  SWITCHYARD_BIND is none\n"));
  EXPECT_TRUE(nlohmann::json::parse(cli::to_json(report))["binding"]["ranks"].empty());
  report.binding = "numa";
  report.nodes.clear();
  EXPECT_THAT(cli::to_text(report), HasSubstr("does not describe its NUMA nodes\n"));
  report.hwloc.clear();
  EXPECT_THAT(cli::to_text(report), HasSubstr("not bound  hwloc is not in this build\n"));
}

TEST(DoctorTest, UnknownOptionIsAUsageError) {
  const CommandResult result = doctor({"--jsn"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.error, HasSubstr("--jsn"));
}

}  // namespace
}  // namespace switchyard::test
