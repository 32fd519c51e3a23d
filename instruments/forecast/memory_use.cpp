// SPDX-License-Identifier: Apache-2.0

#include "forecast/memory_use.h"

#include "switchyard/error.h"

#include "core/bytes.h"
#include "exchange/push/crossing.h"
#include "exchange/push/received_memory.h"
#include "forecast/layer_time.h"
#include "plan/host_crossings.h"
#include "plan/push_path.h"

namespace switchyard::forecast {
namespace {

// Of rank 0: no rank of hosts of one size has more.
MemoryUse gpu_memory(const ExchangeConfig& config, int num_ranks, int num_hosts) {
  PushExchangeShape shape = make_push_exchange_shape(config, num_ranks, 0, RankLimit::kNone);
  const std::int64_t rows = shape.buffer_rows(0, config.max_tokens_per_rank);
  std::size_t window_bytes = shape.window_bytes;
  std::size_t receive_bytes = lay_out_received(nullptr, shape, 0, rows).num_bytes;
  const PathFacts facts{.num_ranks = num_ranks, .is_over_hosts = num_hosts > 1, .gpu_can = true};
  if (can_be_direct(shape.config, facts, PushPath::kAuto)) {  // received rows lie in the window
    lay_out_direct(shape, 0);
    window_bytes = shape.all_window_bytes();
    receive_bytes = 0;
  }
  if (num_hosts > 1) {
    const HostMap map(even_host_map(num_ranks, num_hosts));
    window_bytes = hosts_window_bytes(shape, map);
    receive_bytes = checked_add(receive_bytes, hosts_slot_layout(shape, map, 0).num_bytes);
  }
  const auto num_slots = static_cast<std::size_t>(config.max_in_flight);
  return {checked_mul(num_slots, window_bytes), checked_mul(num_slots, receive_bytes), {}, false};
}

// What an exchange of so many ranks would be refused for, when it would be possible for fewer.
void note_rank_limit(const ExchangeConfig& config, int num_ranks, MemoryUse& use) {
  try {
    make_push_exchange_shape(config, num_ranks, 0);
  } catch (const Error& error) {
    use.obstacle = error.what();
    use.exceeds_ranks = true;
  }
}

MemoryUse cpu_memory(const ExchangeConfig& config, int num_ranks, int num_hosts) {
  const ExchangeMemory memory = exchange_memory(config, even_host_map(num_ranks, num_hosts), 0);
  return {memory.window_bytes, memory.receive_bytes, {}, false};
}

}  // namespace

MemoryUse memory_use(const HostsShape& shape, std::int32_t num_physical, const std::string& backend,
                     bool is_gpu) {
  ExchangeConfig config = shape.exchange_config();
  config.num_experts = num_physical;
  config.max_in_flight = shape.num_micro_batches;
  config.max_tokens_per_rank = tokens_of_batch(config.max_tokens_per_rank, shape.num_micro_batches);
  try {
    const int num_hosts = backend == "hosts" ? shape.num_hosts : 1;
    if (is_gpu) {
      MemoryUse use = gpu_memory(config, shape.num_ranks, num_hosts);
      note_rank_limit(config, shape.num_ranks, use);
      return use;
    }
    // A rank on a host of its own has messages alone.
    if (backend == "messages") return cpu_memory(config, shape.num_ranks, shape.num_ranks);
    return cpu_memory(config, shape.num_ranks, num_hosts);
  } catch (const Error& error) {
    MemoryUse none;
    none.obstacle = error.what();
    return none;
  }
}

}  // namespace switchyard::forecast
