// SPDX-License-Identifier: Apache-2.0
//
// small_layer.h: an exchange, a class and a layer of four tokens, on any device.
#pragma once

#include <memory>

#include "switchyard/exchange.h"
#include "switchyard/experts.h"
#include "switchyard/modular_kernel.h"
#include "switchyard/prepare_finalize.h"

#include "unit/moe/expert_problem.h"

namespace switchyard::test {

inline ExchangeConfig exchange_config() {
  ExchangeConfig config;
  config.num_experts = 4;
  config.num_topk = 2;
  config.hidden = 16;
  config.max_tokens_per_rank = 4;
  return config;
}

inline PrepareFinalizeConfig class_config() {
  PrepareFinalizeConfig config;
  config.num_experts = 4;
  config.num_topk = 2;
  config.hidden = 16;
  config.max_tokens_per_rank = 4;
  return config;
}

inline std::unique_ptr<ModularKernel> make_layer(const Group& group, Device rows, Device experts) {
  const Problem problem(16, 8, {1, 1, 1, 1});
  return std::make_unique<ModularKernel>(
      make_prepare_finalize(PrepareKind::kElasticDecode, group, class_config(), {.device = rows}),
      make_exact_experts(problem.weights(), {}, experts));
}

}  // namespace switchyard::test
