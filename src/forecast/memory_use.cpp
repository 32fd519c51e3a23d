// SPDX-License-Identifier: Apache-2.0

#include "forecast/memory_use.h"

#include "switchyard/error.h"

#include "core/bytes.h"
#include "exchange/exchange_shape.h"
#include "exchange/messages/messages_exchange.h"
#include "exchange/push/received_memory.h"
#include "plan/host_crossings.h"
#include "plan/hosts_layout.h"
#include "plan/message_layout.h"

namespace switchyard::forecast {
namespace {

MemoryUse push_memory(const ExchangeConfig& config, int num_ranks) {
  const PushExchangeShape shape = make_push_exchange_shape(config, num_ranks, 0);
  const std::int64_t rows = shape.buffer_rows(0, config.max_tokens_per_rank);
  return {shape.window_bytes, lay_out_received(nullptr, shape, 0, rows).num_bytes, {}};
}

MemoryUse messages_memory(const ExchangeConfig& config, int num_ranks) {
  const ExchangeShape shape = make_exchange_shape(config, num_ranks, 0);
  const MessageLayout layout = make_message_layout(shape.window, config.num_experts, false,
                                                   num_ranks > MessagesExchange::kRanksWithAllIds);
  const std::size_t staged =
      checked_mul(layout.total_bytes, static_cast<std::size_t>(config.max_in_flight));
  return {0, checked_add(exchange_memory(config, num_ranks, 0).receive_bytes, staged), {}};
}

MemoryUse hosts_memory(const ExchangeConfig& config, int num_ranks, int num_hosts) {
  const ExchangeShape shape = make_exchange_shape(config, num_ranks, 0);
  // Hosts are of one size, so a rank passes on one source of each other host.
  const HostNumbers numbers{static_cast<std::size_t>(num_hosts),
                            static_cast<std::size_t>(num_ranks / num_hosts),
                            static_cast<std::size_t>(num_hosts - 1)};
  const HostsLayout layout = make_hosts_layout(shape.window, numbers, false);
  const std::size_t kept =
      checked_mul(layout.private_bytes, static_cast<std::size_t>(config.max_in_flight));
  return {layout.window_bytes,
          checked_add(exchange_memory(config, num_ranks, 0).receive_bytes, kept),
          {}};
}

}  // namespace

MemoryUse memory_use(const measure::BenchShape& shape, std::int32_t num_physical,
                     const std::string& backend) {
  ExchangeConfig config = shape.exchange_config();
  config.num_experts = num_physical;
  try {
    if (backend == "push") return push_memory(config, shape.num_ranks);
    if (backend == "messages") return messages_memory(config, shape.num_ranks);
    if (backend == "hosts") return hosts_memory(config, shape.num_ranks, shape.num_hosts);
    const ExchangeMemory memory = exchange_memory(config, shape.num_ranks, 0);
    return {memory.window_bytes, memory.receive_bytes, {}};
  } catch (const Error& error) {
    MemoryUse none;
    none.obstacle = error.what();
    return none;
  }
}

}  // namespace switchyard::forecast
