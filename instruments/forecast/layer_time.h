// SPDX-License-Identifier: Apache-2.0
//
// layer_time.h: a layer's time from that of its calls and of its experts, which compute while other
// micro-batches travel.
#pragma once

#include <cstdint>
#include <vector>

#include "measure/workload.h"
#include "plan/exchange_load.h"

namespace switchyard::forecast {

struct ExpertCosts {
  double tflops = 0;                ///< that the GEMMs reach
  double weight_gb_per_second = 0;  ///< at which weights are read
  int weight_bits = 8;
  double free_sms = 1;  ///< part of the processor that is set aside for experts
};

/// The slowest rank: two GEMMs per row, [H, 2 I] and [I, H]; or reading the weights of the experts
/// that have rows once, if that takes longer.
double experts_us(const ExpertCosts& costs, const measure::Workload& workload,
                  std::int32_t experts_per_rank, const std::vector<RankLoad>& loads);

/// How many tokens the largest of `num_batches` micro-batches has.
std::int64_t tokens_of_batch(std::int64_t num_tokens, int num_batches);

/// One micro-batch. Times are those of calls and experts that run alone.
struct BatchTime {
  double dispatch_us = 0;
  double experts_us = 0;
  double combine_us = 0;
  /// Part of the processor that a call takes from the experts of other micro-batches while it runs.
  double dispatch_sms = 0;
  double combine_sms = 0;
};

/// One layer of one micro-batch or more. Calls run one after another on one stream, in order of
/// their batches, dispatches first; experts on another, with what a call beside them leaves.
double layer_us(const std::vector<BatchTime>& batches);

}  // namespace switchyard::forecast
