// SPDX-License-Identifier: Apache-2.0
//
// exchange_time.h: what a rank's load costs on a machine: bytes from the exchange's own layouts,
// grids from plan/push_grid.h, times from plan/cost.h.
#pragma once

#include <vector>

#include "exchange/push/push_shape.h"
#include "forecast/hosts_shape.h"
#include "forecast/machine.h"
#include "plan/exchange_load.h"

namespace switchyard::forecast {

struct ExchangeTime {
  CallTime dispatch;
  CallTime combine;
  double total_us() const { return dispatch.total_us + combine.total_us; }
};

/// What one rank's links carry in a call.
struct LinkBytes {
  double inside_out = 0;     ///< to ranks of its host
  double across_out = 0;     ///< to other hosts
  double busier_inside = 0;  ///< in the busier direction
  double busier_across = 0;
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

  LinkBytes dispatch_bytes(const RankLoad& load) const;
  LinkBytes combine_bytes(const RankLoad& load) const;
  /// Part of the processor that a call occupies while it runs.
  double dispatch_sms() const;
  double combine_sms() const;
  /// "shared" or "fixed" roles of a dispatch; "streamed" or "fixed" of a combine; CPUs: "pull".
  const char* dispatch_path() const;
  const char* combine_path() const;

 private:
  void set_messages(PushExchangeShape shape);
  LinkBytes bytes_of(const LinkRows& rows, double row_bytes, double message_bytes) const;
  ExchangeTime push_time(const RankLoad& load) const;
  ExchangeTime pull_time(const RankLoad& load) const;

  const Machine* machine_;
  HostsShape shape_;
  PushLayout layout_;
  DispatchCtas dispatch_;
  CombineCtas combine_;
  double token_bytes_ = 0;
  double placed_bytes_ = 0;
  // Bytes of a row on a link.
  double dispatch_row_bytes_ = 0;
  double combine_row_bytes_ = 0;
  // GPUs of several hosts: to each other host, whatever the routing is.
  double dispatch_message_bytes_ = 0;
  double return_message_bytes_ = 0;
};

}  // namespace switchyard::forecast
