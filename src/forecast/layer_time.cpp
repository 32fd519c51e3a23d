// SPDX-License-Identifier: Apache-2.0

#include "forecast/layer_time.h"

#include <algorithm>

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

double layer_us(int num_batches, double dispatch_us, double experts_us, double combine_us) {
  double experts_free = 0;
  std::vector<double> done(static_cast<std::size_t>(num_batches));
  for (std::size_t batch = 0; batch < done.size(); ++batch) {
    const double arrived = static_cast<double>(batch + 1) * dispatch_us;
    experts_free = std::max(experts_free, arrived) + experts_us;
    done[batch] = experts_free;
  }
  double calls_free = static_cast<double>(num_batches) * dispatch_us;
  for (const double ready : done) calls_free = std::max(calls_free, ready) + combine_us;
  return calls_free;
}

}  // namespace switchyard::forecast
