// SPDX-License-Identifier: Apache-2.0

#include "forecast/layer_time.h"

#include <algorithm>

#include "core/round_up.h"

namespace switchyard::forecast {

double experts_us(const ExpertCosts& costs, const measure::Workload& workload,
                  std::int32_t experts_per_rank, const std::vector<RankLoad>& loads) {
  const double weights =
      3.0 * static_cast<double>(workload.hidden) * static_cast<double>(workload.intermediate);
  double most = 0;
  for (const RankLoad& load : loads) {
    const auto rows = static_cast<double>(load.placed);
    const double experts =
        static_cast<double>(std::min<std::int64_t>(experts_per_rank, load.placed));
    const double compute = 2 * weights * rows / (costs.tflops * 1e6 * costs.free_sms);
    const double read =
        experts * weights * costs.weight_bits / 8 / (costs.weight_gb_per_second * 1e3);
    most = std::max({most, compute, read});
  }
  return most;
}

std::int64_t tokens_of_batch(std::int64_t num_tokens, int num_batches) {
  return cdiv<std::int64_t>(num_tokens, num_batches);
}

double layer_us(const std::vector<BatchTime>& batches) {
  const std::size_t num_batches = batches.size();
  std::size_t calls_done = 0;  // of all dispatches, then of all combines
  std::size_t experts_done = 0;
  double call_left = batches[0].dispatch_us;
  double experts_left = batches[0].experts_us;
  double now = 0;
  while (calls_done < 2 * num_batches) {
    const bool dispatches = calls_done < num_batches;
    const std::size_t at = dispatches ? calls_done : calls_done - num_batches;
    const BatchTime& called = batches[at];
    const bool has_call = dispatches || experts_done > at;
    const bool has_experts = experts_done < std::min(calls_done, num_batches);
    const double taken = dispatches ? called.dispatch_sms : called.combine_sms;
    const double speed = !has_experts ? 0 : has_call ? 1 - taken : 1;
    if (has_call && call_left * speed <= experts_left) {
      now += call_left;
      experts_left -= call_left * speed;
      ++calls_done;
      const bool dispatches_next = calls_done < num_batches;
      const BatchTime& next = batches[calls_done % num_batches];
      call_left = dispatches_next ? next.dispatch_us : next.combine_us;
    } else {
      const double us = experts_left / speed;
      now += us;
      if (has_call) call_left -= us;
      ++experts_done;
      if (experts_done < num_batches) experts_left = batches[experts_done].experts_us;
    }
  }
  return now;
}

}  // namespace switchyard::forecast
