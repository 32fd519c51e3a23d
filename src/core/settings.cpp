// SPDX-License-Identifier: Apache-2.0

#include "core/settings.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <map>
#include <mutex>

#include "core/fail.h"

namespace switchyard {
namespace {

constexpr std::array<SettingInfo, 18> kSettings{{
    {"SWITCHYARD_ENGINE", "auto",
     "how ranks reach each other: auto, local (threads), shm (processes of one host), mpi "
     "(processes of several hosts)"},
    {"SWITCHYARD_TIMEOUT_MS", "30000",
     "longest wait for a peer, in milliseconds, from 1 to 86400000"},
    {"SWITCHYARD_LOG_LEVEL", "warn", "error, warn, info, debug, trace or off"},
    {"SWITCHYARD_LOG_FILE", "",
     "file to which log lines are appended, with %h for the host, %p for the process and %r for "
     "the rank; empty: stderr"},
    {"SWITCHYARD_STORE", "",
     "where ranks meet: tcp://host:port or unix:@name; empty: from the launcher"},
    {"SWITCHYARD_SECRET", "", "shared by the ranks of a job; the store refuses whoever lacks it"},
    {"SWITCHYARD_CONTROL_FD", "",
     "descriptor of the memory shared with our launcher; set by our launcher"},
    {"SWITCHYARD_BIND", "numa",
     "cores of ranks that our launcher starts: numa (those of one NUMA node each) or none (all)"},
    {"SWITCHYARD_HOST_ID", "",
     "ranks with the same text share a host; empty: those of one host name, kernel and network "
     "namespace"},
    {"SWITCHYARD_MPI_MODULE", "",
     "path of libswitchyard_mpi.so; empty: beside the library, then where the system looks"},
    {"SWITCHYARD_CUDA_MODULE", "",
     "path of libswitchyard_cuda.so; empty: beside the library, then where the system looks"},
    {"SWITCHYARD_CUBLAS", "",
     "path of the cuBLAS library; empty: libcublas.so.13 or libcublas.so.12 where the system "
     "looks"},
    {"SWITCHYARD_HEAP", "auto",
     "how GPUs of one host share memory: auto, same_process (threads), vmm, ipc or nccl"},
    {"SWITCHYARD_PUSH_PATH", "auto",
     "for tests and measurements, how rows travel between GPUs: auto, slots or direct; the same on "
     "every rank"},
    {"SWITCHYARD_ALL2ALL_BACKEND", "allgather_reducescatter",
     "how a ParallelConfig moves tokens: a backend's name of configuration.md"},
    {"SWITCHYARD_USE_FLASHINFER_MOE_FP4", "0", "1: a MoEConfig asks for FlashInfer's fp4 kernels"},
    {"SWITCHYARD_FLASHINFER_MOE_BACKEND", "throughput",
     "which of FlashInfer's kernels a MoEConfig asks for: throughput, latency or masked_gemm"},
    {"SWITCHYARD_VLLM", "",
     "in vLLM, which modules are ours: 1 for deep_ep and flashinfer.comm, or their names with "
     "commas; empty: none"},
}};

std::mutex program_mutex;
std::map<std::string, std::string, std::less<>>& program_values() {
  static std::map<std::string, std::string, std::less<>> values;
  return values;
}

const SettingInfo& find_setting(std::string_view name) {
  for (const SettingInfo& info : kSettings) {
    if (name == info.name) return info;
  }
  fail(Errc::kInternal, "setting: \"{}\" is not in the table", name);
}

}  // namespace

std::span<const SettingInfo> all_settings() { return kSettings; }

const char* name_of(SettingOrigin origin) noexcept {
  switch (origin) {
    case SettingOrigin::kDefault: return "default";
    case SettingOrigin::kEnvironment: return "environment";
    case SettingOrigin::kProgram: return "program";
  }
  return "unknown";
}

SettingValue setting(std::string_view name) {
  const SettingInfo& info = find_setting(name);
  {
    const std::lock_guard lock(program_mutex);
    const auto found = program_values().find(name);
    if (found != program_values().end()) return {found->second, SettingOrigin::kProgram};
  }
  const char* text = std::getenv(info.name);
  if (text != nullptr && *text != '\0') return {text, SettingOrigin::kEnvironment};
  return {info.default_text, SettingOrigin::kDefault};
}

SettingValue shown_setting(std::string_view name) {
  SettingValue value = setting(name);
  if (name == "SWITCHYARD_SECRET" && !value.text.empty()) value.text = "(set)";
  return value;
}

std::int64_t setting_integer(std::string_view name, std::int64_t min, std::int64_t max) {
  const std::string text = setting(name).text;
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require(error == std::errc{} && end == text.data() + text.size() && value >= min && value <= max,
          Errc::kInvalidArgument, "setting {} is \"{}\", must be a whole number from {} to {}",
          name, text, min, max);
  return value;
}

void set_setting(std::string_view name, std::string text) {
  find_setting(name);
  const std::lock_guard lock(program_mutex);
  program_values()[std::string(name)] = std::move(text);
}

}  // namespace switchyard
