// SPDX-License-Identifier: Apache-2.0
//
// exchange_time.h: what a rank's load costs on a machine: bytes from the exchange's own layouts,
// grids from plan/push_grid.h, times from plan/cost.h.
#pragma once

#include <vector>

#include "forecast/hosts_shape.h"
#include "forecast/machine.h"
#include "plan/exchange_load.h"

namespace switchyard::forecast {

struct ExchangeTime {
  CallTime dispatch;
  CallTime combine;
  double total_us() const { return dispatch.total_us + combine.total_us; }
};

struct TimeOptions {
  /// CTAs keep one role and copy nothing ahead, as in the builds that measured 4 GPUs.
  bool keeps_roles = false;
};

/// A shape of `num_physical` experts, with its layouts ready to be asked about any rank.
class ExchangeCosts {
 public:
  /// Errors: kInvalidArgument, kNotSupported: as the exchange itself.
  ExchangeCosts(const Machine& machine, const HostsShape& shape, std::int32_t num_physical,
                const TimeOptions& options = {});

  ExchangeTime of(const RankLoad& load) const;
  /// The slowest rank of each call.
  ExchangeTime slowest(const std::vector<RankLoad>& loads) const;

  /// Bytes of a row on a link.
  double dispatch_row_bytes() const { return dispatch_row_bytes_; }
  double combine_row_bytes() const { return combine_row_bytes_; }
  /// Part of the processor that a call occupies while it runs.
  double dispatch_sms() const;
  double combine_sms() const;
  /// "shared" or "fixed" roles of a dispatch; "streamed" or "fixed" of a combine; CPUs: "pull".
  const char* dispatch_path() const;
  const char* combine_path() const;

 private:
  ExchangeTime push_time(const RankLoad& load) const;
  ExchangeTime pull_time(const RankLoad& load) const;

  const Machine* machine_;
  HostsShape shape_;
  PushLayout layout_;
  DispatchCtas dispatch_;
  CombineCtas combine_;
  double token_bytes_ = 0;
  double placed_bytes_ = 0;
  double dispatch_row_bytes_ = 0;
  double combine_row_bytes_ = 0;
};

}  // namespace switchyard::forecast
