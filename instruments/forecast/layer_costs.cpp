// SPDX-License-Identifier: Apache-2.0

#include "forecast/layer_costs.h"

#include "core/round_up.h"

namespace switchyard::forecast {

// As micro_batches.h splits: some may have one token more than the others, and come first.
LayerCosts::LayerCosts(const Machine& machine, const HostsShape& shape, const Placement& placement,
                       const ExpertCosts& experts, const Simulation& whole, std::int64_t iteration,
                       const TimeOptions& options)
    : machine_(machine), shape_(shape), num_physical_(whole.num_physical), options_(options) {
  const std::int64_t num_batches = shape.num_micro_batches;
  const std::int64_t num_larger = shape.num_tokens % num_batches;
  const std::int64_t most = tokens_of_batch(shape.num_tokens, shape.num_micro_batches);
  if (num_larger > 0) parts_.push_back({num_larger, most, {}, 0});
  parts_.push_back({num_batches - num_larger, shape.num_tokens / num_batches, {}, 0});
  ExpertCosts costs = experts;
  if (has_budget()) costs.free_sms = free_sms();
  const std::int32_t held = cdiv(num_physical_, shape.num_ranks);
  for (Part& part : parts_) {
    HostsShape of_part = shape;
    of_part.num_tokens = part.num_tokens;
    part.loads = num_batches == 1 ? whole.loads : simulate(of_part, placement, iteration).loads;
    part.experts_us = forecast::experts_us(costs, shape.workload, held, part.loads);
  }
}

// With a budget, SMs are set aside for calls and for experts; without, a call takes what its grid
// fills, for as long as it runs.
bool LayerCosts::has_budget() const {
  return shape_.num_micro_batches > 1 && machine_.is_gpu && shape_.num_sms > 0;
}

double LayerCosts::free_sms() const {
  const double all = machine_.push.num_sms;
  return (all - shape_.num_sms) / all;
}

double LayerCosts::layer_us(Layout layout, Reduce reduce) const {
  HostsShape shape = shape_;
  shape.layout = layout;
  shape.reduce = reduce;
  std::vector<BatchTime> batches;
  for (const Part& part : parts_) {
    shape.num_tokens = part.num_tokens;
    const ExchangeCosts costs(machine_, shape, num_physical_, options_);
    const ExchangeTime time = costs.slowest(part.loads);
    BatchTime batch{time.dispatch.total_us, part.experts_us, time.combine.total_us};
    if (!has_budget()) {
      batch.dispatch_sms = costs.dispatch_sms();
      batch.combine_sms = costs.combine_sms();
    }
    batches.insert(batches.end(), static_cast<std::size_t>(part.num_batches), batch);
  }
  return forecast::layer_us(batches);
}

}  // namespace switchyard::forecast
