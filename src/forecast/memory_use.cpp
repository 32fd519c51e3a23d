// SPDX-License-Identifier: Apache-2.0

#include "forecast/memory_use.h"

#include "switchyard/error.h"

#include "core/bytes.h"
#include "exchange/push/received_memory.h"
#include "forecast/layer_time.h"
#include "plan/host_crossings.h"

namespace switchyard::forecast {
namespace {

MemoryUse push_memory(const ExchangeConfig& config, int num_ranks) {
  const PushExchangeShape shape = make_push_exchange_shape(config, num_ranks, 0);
  const std::int64_t rows = shape.buffer_rows(0, config.max_tokens_per_rank);
  const auto num_slots = static_cast<std::size_t>(config.max_in_flight);
  return {checked_mul(num_slots, shape.window_bytes),
          checked_mul(num_slots, lay_out_received(nullptr, shape, 0, rows).num_bytes),
          {}};
}

MemoryUse cpu_memory(const ExchangeConfig& config, int num_ranks, int num_hosts) {
  const ExchangeMemory memory = exchange_memory(config, even_host_map(num_ranks, num_hosts), 0);
  return {memory.window_bytes, memory.receive_bytes, {}};
}

}  // namespace

MemoryUse memory_use(const HostsShape& shape, std::int32_t num_physical,
                     const std::string& backend) {
  ExchangeConfig config = shape.exchange_config();
  config.num_experts = num_physical;
  config.max_in_flight = shape.num_micro_batches;
  config.max_tokens_per_rank = tokens_of_batch(config.max_tokens_per_rank, shape.num_micro_batches);
  try {
    if (backend == "push") return push_memory(config, shape.num_ranks);
    // A rank on a host of its own has messages alone.
    if (backend == "messages") return cpu_memory(config, shape.num_ranks, shape.num_ranks);
    return cpu_memory(config, shape.num_ranks, backend == "hosts" ? shape.num_hosts : 1);
  } catch (const Error& error) {
    MemoryUse none;
    none.obstacle = error.what();
    return none;
  }
}

}  // namespace switchyard::forecast
