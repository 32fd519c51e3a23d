// SPDX-License-Identifier: Apache-2.0

#include "check_gpus.h"

#include <fmt/format.h>

#include "core/settings.h"
#include "device/cuda_module.h"

namespace switchyard::cli {
namespace {

constexpr int kMostThreads = 7;  // of 8 queues that a process has
constexpr int kMostProcesses = 3;

}  // namespace

std::vector<std::string> names_of_gpus() {
  std::vector<std::string> names;
  const DeviceFacts facts = cuda_module().describe_devices(setting("SWITCHYARD_HEAP").text);
  for (const GpuFacts& gpu : facts.gpus) names.push_back(gpu.name);
  return names;
}

void skip_crowded(std::vector<conformance::CheckCase>& cases, int num_gpus) {
  for (conformance::CheckCase& test : cases) {
    if (test.device != "cuda" || test.engine.empty()) continue;
    const bool is_local = test.engine == "local";
    const int most = is_local ? kMostThreads : kMostProcesses;
    if ((test.num_ranks + num_gpus - 1) / num_gpus <= most) continue;
    test.skipped = fmt::format("{} {} on {} GPUs, at most {} share one", test.num_ranks,
                               is_local ? "threads" : "processes", num_gpus, most);
  }
}

}  // namespace switchyard::cli
