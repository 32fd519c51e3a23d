// SPDX-License-Identifier: Apache-2.0

#include "check_gpus.h"

#include <fmt/format.h>

#include "core/settings.h"
#include "device/cuda_module.h"

namespace switchyard::cli {
namespace {

constexpr int kMaxRanks = 7;  // per GPU

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
    if ((test.num_ranks + num_gpus - 1) / num_gpus <= kMaxRanks) continue;
    test.skipped = fmt::format("{} ranks on {} GPU{}, at most {} share one", test.num_ranks,
                               num_gpus, num_gpus == 1 ? "" : "s", kMaxRanks);
  }
}

}  // namespace switchyard::cli
