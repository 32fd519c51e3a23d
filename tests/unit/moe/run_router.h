// SPDX-License-Identifier: Apache-2.0
//
// run_router.h: runs select_experts on tables of the oracle.
#pragma once

#include <cstdint>
#include <vector>

#include "switchyard/router.h"

#include "reference/reference.h"

namespace switchyard::test {

inline reference::Routing run_router(const RouterConfig& config,
                                     const reference::Table<float>& logits,
                                     const std::vector<float>& bias) {
  reference::Routing routing{reference::Table<std::int32_t>(logits.rows, config.num_topk, -7),
                             reference::Table<float>(logits.rows, config.num_topk, -7.0f)};
  select_experts(
      config, TensorView::of(logits.data.data(), {logits.rows, logits.cols}),
      bias.empty() ? TensorView() : TensorView::of(bias.data(), {std::int64_t{config.num_experts}}),
      TensorView::of(routing.topk_ids.data.data(), {logits.rows, config.num_topk}),
      TensorView::of(routing.topk_weights.data.data(), {logits.rows, config.num_topk}));
  return routing;
}

/// Softmax or sigmoid without norm, groups or factor.
inline RouterConfig config_of(std::int32_t num_experts, std::int32_t num_topk, Scoring scoring) {
  RouterConfig config;
  config.num_experts = num_experts;
  config.num_topk = num_topk;
  config.scoring = scoring;
  return config;
}

}  // namespace switchyard::test
