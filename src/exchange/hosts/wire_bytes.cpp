// SPDX-License-Identifier: Apache-2.0
//
// What leaves a rank: to each rank of its host what pull counts, to each other host one row for
// each token that crosses; and back what it hands to forwarders, and what it passes back as one.

#include "exchange/hosts/hosts_exchange.h"

namespace switchyard {

std::int64_t HostsExchange::routing_bytes_to(const Slot& slot, int peer) const {
  return is_sent_to(peer) ? PullExchange::routing_bytes_to(slot, peer) : 0;
}

std::int64_t HostsExchange::rows_sent_to(const Slot& slot, int peer) const {
  if (is_near(peer)) return PullExchange::rows_sent_to(slot, peer);
  if (!is_sent_to(peer)) return 0;
  const auto host = static_cast<std::size_t>(map_.host_of(peer));
  return static_cast<std::int64_t>(slot.routing->hosts.crossing[host].size());
}

std::int64_t HostsExchange::num_rows_returned(const Slot& slot) const {
  std::int64_t num_rows = 0;
  for (const Arrival& arrival : slot.receive().arrivals) {
    const int owner = arrival.source;
    const bool stays = is_near(owner) ? owner == rank_ : forwarder_of(owner) == rank_;
    if (stays || !returns_row(arrival)) continue;
    num_rows += config_.reduce == Reduce::kPerExpert ? arrival.count : 1;
  }
  for (std::size_t i = 0; i < forwarded_.size(); ++i) num_rows += rows_passed_back(slot, i);
  return num_rows;
}

std::int64_t HostsExchange::rows_passed_back(const Slot& slot, std::size_t number) const {
  const ForwardedRouting& routing = slot.routing->hosts.forwarded[number];
  std::int64_t num_rows = 0;
  for (const std::int32_t token : routing.tokens) {
    std::int64_t num_near = 0;
    for (const TokenRank& r : routing.plan.ranks_of(token)) num_near += is_near(r.rank) ? 1 : 0;
    if (config_.reduce == Reduce::kPerHost) num_near = num_near > 0 ? 1 : 0;
    if (config_.reduce == Reduce::kPerExpert) {
      const std::uint16_t* ids = routing.topk_ids.data() + std::int64_t{token} * config_.num_topk;
      num_near = 0;
      for (int k = 0; k < config_.num_topk; ++k) {
        num_near += ids[k] != kNoExpert && is_near(shape_.ownership.owner(ids[k])) ? 1 : 0;
      }
    }
    num_rows += num_near;
  }
  return num_rows;
}

}  // namespace switchyard
