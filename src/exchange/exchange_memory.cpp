// SPDX-License-Identifier: Apache-2.0
//
// exchange_memory.cpp: memory of ranks on given hosts, as the backend that they get takes it.

#include <algorithm>

#include "core/bytes.h"
#include "core/fail.h"
#include "exchange/backend_layouts.h"

namespace switchyard {

HostsLayout hosts_layout_of(const ExchangeConfig& config, const WindowLayout& window,
                            const HostMap& map) {
  const HostNumbers numbers{static_cast<std::size_t>(map.num_hosts()), map.max_host_size(),
                            map.max_forwarded()};
  return make_hosts_layout(window, numbers, config.layout == Layout::kAllGather);
}

bool drops_rows(const ExchangeConfig& config) {
  return config.overflow == Overflow::kDrop && config.capacity > 0;
}

// What is dropped follows from the ids and weights of all ranks.
bool lists_tokens(const ExchangeConfig& config, int num_ranks) {
  return num_ranks > kRanksWithAllIds && config.layout != Layout::kAllGather && !drops_rows(config);
}

MessageLayout message_layout_of(const ExchangeConfig& config, const WindowLayout& window,
                                int num_ranks) {
  return make_message_layout(window, config.num_experts, config.layout == Layout::kAllGather,
                             lists_tokens(config, num_ranks));
}

ExchangeMemory exchange_memory(const ExchangeConfig& config, std::span<const std::int32_t> hosts,
                               int rank) {
  const auto num_ranks = static_cast<int>(hosts.size());
  ExchangeMemory memory = exchange_memory(config, num_ranks, rank);
  const HostMap map({hosts.begin(), hosts.end()});
  if (map.num_hosts() == 1) return memory;
  const WindowLayout window = make_exchange_shape(config, num_ranks, rank).window;
  std::size_t private_bytes = 0;
  if (map.num_hosts() == num_ranks) {
    memory.window_bytes = 0;
    private_bytes = message_layout_of(config, window, num_ranks).total_bytes;
  } else {
    const HostsLayout layout = hosts_layout_of(config, window, map);
    memory.window_bytes = layout.window_bytes;
    private_bytes = layout.private_bytes;
  }
  const auto num_slots = static_cast<std::size_t>(config.max_in_flight);
  memory.receive_bytes = checked_add(memory.receive_bytes, checked_mul(private_bytes, num_slots));
  return memory;
}

}  // namespace switchyard
