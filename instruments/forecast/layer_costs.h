// SPDX-License-Identifier: Apache-2.0
//
// layer_costs.h: what a layer of a shape costs on a machine, split into its micro-batches.
#pragma once

#include <cstdint>
#include <vector>

#include "forecast/exchange_time.h"
#include "forecast/layer_time.h"
#include "forecast/simulation.h"

namespace switchyard::forecast {

class LayerCosts {
 public:
  /// `whole`: one iteration of the shape with this placement, as simulate() counts it. `machine`
  /// must outlive it. Errors: those of simulate().
  LayerCosts(const Machine& machine, const HostsShape& shape, const Placement& placement,
             const ExpertCosts& experts, const Simulation& whole, std::int64_t iteration,
             const TimeOptions& options = {});

  /// Experts of the largest micro-batch.
  double experts_us() const { return parts_.front().experts_us; }
  double layer_us(Layout layout, Reduce reduce) const;

 private:
  /// Micro-batches of one size.
  struct Part {
    std::int64_t num_batches = 1;
    std::int64_t num_tokens = 0;  ///< of a rank
    std::vector<RankLoad> loads;
    double experts_us = 0;
  };

  bool has_budget() const;
  double free_sms() const;

  const Machine& machine_;
  HostsShape shape_;
  std::int32_t num_physical_;
  TimeOptions options_;
  std::vector<Part> parts_;
};

}  // namespace switchyard::forecast
