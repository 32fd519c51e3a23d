// SPDX-License-Identifier: Apache-2.0
//
// The sizes come from the published config.json files on huggingface.co: hidden_size, number of
// routed experts, num_experts_per_tok and the intermediate size of a routed expert of
//   deepseek-ai/DeepSeek-V3          moonshotai/Kimi-K2-Instruct     Qwen/Qwen3-235B-A22B
//   Qwen/Qwen3-30B-A3B               openai/gpt-oss-120b             mistralai/Mixtral-8x7B-v0.1
//   meta-llama/Llama-4-Maverick-17B-128E (text_config)               zai-org/GLM-4.5

#include "measure/workload.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <vector>

#include "core/fail.h"
#include "core/text.h"
#include "io/model_config.h"

namespace switchyard::measure {

std::span<const Workload> named_workloads() {
  static const std::array<Workload, 8> kWorkloads{{
      {"deepseek-v3", 7168, 256, 8, 2048},
      {"kimi-k2", 7168, 384, 8, 2048},
      {"qwen3-235b", 4096, 128, 8, 1536},
      {"qwen3-30b", 2048, 128, 8, 768},
      {"gpt-oss-120b", 2880, 128, 4, 2880},
      {"mixtral-8x7b", 4096, 8, 2, 14336},
      {"llama-4-maverick", 5120, 128, 1, 8192},
      {"glm-4.5", 5120, 160, 8, 1536},
  }};
  return kWorkloads;
}

std::string workload_names() {
  std::string names;
  for (const Workload& workload : named_workloads()) {
    names += (names.empty() ? "" : ", ") + workload.name;
  }
  return names;
}

Workload find_workload(const std::string& name_or_path) {
  const auto known = named_workloads();
  const auto* found = std::find_if(known.data(), known.data() + known.size(),
                                   [&](const Workload& w) { return w.name == name_or_path; });
  if (found != known.data() + known.size()) return *found;
  std::error_code ignored;
  if (!std::filesystem::exists(name_or_path, ignored)) {
    std::vector<std::string_view> names;
    for (const Workload& workload : known) names.push_back(workload.name);
    fail(Errc::kInvalidArgument, "workload is \"{}\", must be a config.json or one of {}{}",
         name_or_path, workload_names(), nearest_names(name_or_path, names));
  }
  const ModelConfig config = read_model_config(name_or_path);
  return {name_or_path, config.hidden, config.num_experts(), config.num_topk(),
          config.moe_intermediate};
}

}  // namespace switchyard::measure
