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
  double free_sms = 1;  ///< part of the processor that communication leaves to experts
};

/// The slowest rank: two GEMMs per row, [H, 2 I] and [I, H]; or reading the weights of the experts
/// that have rows once, if that takes longer.
double experts_us(const ExpertCosts& costs, const measure::Workload& workload,
                  std::int32_t experts_per_rank, const std::vector<RankLoad>& loads);

/// One layer of `num_batches` equal micro-batches. Calls run one after another on one stream, in
/// order of their batches, dispatches first; experts on another. Times are those of one
/// micro-batch.
double layer_us(int num_batches, double dispatch_us, double experts_us, double combine_us);

}  // namespace switchyard::forecast
