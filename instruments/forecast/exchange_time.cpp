// SPDX-License-Identifier: Apache-2.0

#include "forecast/exchange_time.h"

#include <algorithm>
#include <utility>

#include "core/fail.h"
#include "exchange/push/crossing.h"
#include "quant/scheme.h"

namespace switchyard::forecast {
namespace {

constexpr std::int64_t kRoutingBytes = 8;  // of a choice: an id and a weight

double as_double(std::int64_t value) { return static_cast<double>(value); }

std::size_t contract(const HostsShape& shape) { return static_cast<std::size_t>(shape.reduce); }

// Of the ranks of one host, whose kernels move rows as between hosts they would: so there may be
// more hosts than an exchange can have.
PushExchangeShape shape_of_host(const HostsShape& shape, std::int32_t num_physical) {
  ExchangeConfig config = shape.exchange_config();
  config.num_experts = std::max(1, num_physical / shape.num_hosts);
  if (config.reduce == Reduce::kPerHost) config.reduce = Reduce::kPerRank;
  return make_push_exchange_shape(config, shape.num_ranks / shape.num_hosts, 0);
}

double part_of(const Machine& machine, int num_ctas, int num_warps) {
  const int all = machine.push.num_sms * kExchangeCtasPerSm * kExchangeWarps;
  return std::min(1.0, static_cast<double>(num_ctas) * num_warps / all);
}

}  // namespace

ExchangeCosts::ExchangeCosts(const Machine& machine, const HostsShape& shape,
                             std::int32_t num_physical, const TimeOptions& options)
    : machine_(&machine), shape_(shape) {
  const std::int64_t hidden = shape.workload.hidden;
  token_bytes_ = 2.0 * as_double(hidden);
  const std::size_t scales =
      num_scales(shape.scheme, hidden) == 0 ? 0 : scale_row_bytes(shape.scheme, hidden);
  placed_bytes_ = static_cast<double>(row_bytes(shape.scheme, hidden) + scales);
  dispatch_row_bytes_ = placed_bytes_ + as_double(kRoutingBytes * shape.workload.num_topk);
  combine_row_bytes_ = token_bytes_;
  if (!machine.is_gpu) return;
  PushExchangeShape push = shape_of_host(shape, num_physical);
  layout_ = push.main;
  if (shape.num_hosts > 1) set_messages(std::move(push));
  GridRequest request;
  const int sms =
      shape.num_sms == 0 ? machine.push.num_sms : std::min(shape.num_sms, machine.push.num_sms);
  request.max_ctas = std::max(kMinCtas, kExchangeCtasPerSm * sms);
  request.has_whole_gpu = shape.num_sms == 0;
  request.may_share = !options.keeps_roles;
  request.can_stream = !options.keeps_roles && can_stream(layout_, shape.reduce);
  const auto tokens = static_cast<std::int32_t>(shape.num_tokens);
  dispatch_ = dispatch_ctas(request, layout_, tokens);
  combine_ = combine_ctas(request, layout_, tokens);
}

void ExchangeCosts::set_messages(PushExchangeShape shape) {
  const std::int64_t max_tokens = shape.config.max_tokens_per_rank;
  const int host_size = shape_.num_ranks / shape_.num_hosts;
  shape.config.reduce = shape_.reduce;
  shape.weights = make_weight_slots(max_tokens, shape_.num_ranks, shape.config.num_topk);
  dispatch_message_bytes_ =
      static_cast<double>(dispatch_message(shape, max_tokens, false).num_bytes);
  return_message_bytes_ =
      static_cast<double>(return_message(shape, host_size, max_tokens).num_bytes);
}

LinkBytes ExchangeCosts::bytes_of(const LinkRows& rows, double row_bytes,
                                  double message_bytes) const {
  LinkBytes bytes{as_double(rows.inside_out) * row_bytes, as_double(rows.across_out) * row_bytes,
                  as_double(rows.busier_inside()) * row_bytes,
                  as_double(rows.busier_across()) * row_bytes};
  if (!machine_->is_gpu || shape_.num_hosts == 1) return bytes;
  bytes.across_out = (shape_.num_hosts - 1) * message_bytes;
  bytes.busier_across = bytes.across_out;  // and as much arrives
  return bytes;
}

LinkBytes ExchangeCosts::dispatch_bytes(const RankLoad& load) const {
  return bytes_of(load.dispatch, dispatch_row_bytes_, dispatch_message_bytes_);
}

LinkBytes ExchangeCosts::combine_bytes(const RankLoad& load) const {
  return bytes_of(load.combine[contract(shape_)], combine_row_bytes_, return_message_bytes_);
}

ExchangeTime ExchangeCosts::of(const RankLoad& load) const {
  return machine_->is_gpu ? push_time(load) : pull_time(load);
}

ExchangeTime ExchangeCosts::push_time(const RankLoad& load) const {
  const bool is_major = is_expert_major(shape_.layout);
  PushWork work;
  work.tokens = as_double(load.tokens + load.passed_on);
  work.stored = as_double(load.dispatch.inside_out + load.arrivals - load.dispatch.inside_in);
  work.arrivals = as_double(load.arrivals);
  work.placed = as_double(is_major ? load.placed : load.arrivals);
  work.returned = as_double(load.returned[contract(shape_)]);
  work.partials = as_double(load.partials[contract(shape_)]);
  work.token_bytes = token_bytes_;
  work.placed_bytes = placed_bytes_;
  work.quantizes = shape_.scheme.is_quantized();
  const LinkBytes there = dispatch_bytes(load);
  work.wire_bytes = there.busier_inside;
  work.network_bytes = there.busier_across;
  const bool is_programmatic =
      shape_.is_programmatic && shape_.num_tokens <= kMaxProgrammaticTokens;
  ExchangeTime time;
  time.dispatch =
      dispatch_time(machine_->push, machine_->network, layout_, dispatch_, work, is_programmatic);
  const LinkBytes back = combine_bytes(load);
  work.tokens = as_double(load.tokens);
  work.wire_bytes = back.busier_inside;
  work.network_bytes = back.busier_across;
  time.combine =
      combine_time(machine_->push, machine_->network, layout_, combine_, work, is_programmatic);
  return time;
}

// The bytes are those of measure/traffic.h; a rank that passes rows on reads and writes them, too.
ExchangeTime ExchangeCosts::pull_time(const RankLoad& load) const {
  const bool is_major = is_expert_major(shape_.layout);
  const double row = placed_bytes_;
  const double back = combine_row_bytes_;
  const double placed = as_double(is_major ? load.placed : load.arrivals);
  const double arriving = as_double(load.dispatch.inside_in);
  PullWork work;
  work.bytes_read = arriving * row + as_double(load.tokens) * token_bytes_;
  work.bytes_written =
      as_double(load.leaving) * row + placed * row + as_double(load.passed_on) * row;
  work.quantized_bytes = shape_.scheme.is_quantized() ? as_double(load.tokens) * token_bytes_ : 0;
  work.rows = as_double(load.arrivals) + placed;
  work.network_bytes = dispatch_bytes(load).busier_across;
  ExchangeTime time;
  time.dispatch = pull_dispatch_time(machine_->pull, machine_->network, work);
  const LinkRows& rows = load.combine[contract(shape_)];
  work = {};
  work.bytes_read = placed * back + as_double(rows.inside_in + rows.across_in) * back;
  work.bytes_written = as_double(rows.inside_out + load.tokens + rows.across_in) * back;
  work.rows = placed + as_double(rows.inside_in + rows.across_in);
  work.network_bytes = combine_bytes(load).busier_across;
  time.combine = pull_combine_time(machine_->pull, machine_->network, work);
  return time;
}

ExchangeTime ExchangeCosts::slowest(const std::vector<RankLoad>& loads) const {
  ExchangeTime most;
  for (const RankLoad& load : loads) {
    const ExchangeTime time = of(load);
    if (time.dispatch.total_us > most.dispatch.total_us) most.dispatch = time.dispatch;
    if (time.combine.total_us > most.combine.total_us) most.combine = time.combine;
  }
  return most;
}

// A CPU rank has one core.
double ExchangeCosts::dispatch_sms() const {
  if (!machine_->is_gpu) return 1;
  return part_of(*machine_, dispatch_.num_ctas(true, true), dispatch_.num_warps);
}

double ExchangeCosts::combine_sms() const {
  if (!machine_->is_gpu) return 1;
  return part_of(*machine_, combine_.num_ctas(true, true), combine_.num_warps);
}

const char* ExchangeCosts::dispatch_path() const {
  if (!machine_->is_gpu) return "pull";
  return dispatch_.shares_work ? "shared" : "fixed";
}

const char* ExchangeCosts::combine_path() const {
  if (!machine_->is_gpu) return "pull";
  return combine_.streams ? "streamed" : "fixed";
}

}  // namespace switchyard::forecast
