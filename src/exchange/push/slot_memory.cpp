// SPDX-License-Identifier: Apache-2.0

#include "exchange/push/slot_memory.h"

#include <algorithm>

#include "core/bytes.h"
#include "core/carver.h"

namespace switchyard {
namespace {

cuda::CallState lay_out_state(Carver& parts, std::size_t ranks, std::size_t tokens,
                              std::size_t topk) {
  cuda::CallState state;
  carve(parts, state.counter, cuda::kCounterWords);
  carve(parts, state.num_partials, tokens);
  carve(parts, state.columns, tokens * topk);
  carve(parts, state.partial_weights, tokens * topk);
  carve(parts, state.partial_ranks, tokens * topk);
  carve(parts, state.num_arrivals, ranks);
  carve(parts, state.arrival_token, ranks * tokens);
  carve(parts, state.arrival_rows, ranks * tokens * topk);
  carve(parts, state.arrival_weights, ranks * tokens * topk);
  return state;
}

GatherMemory lay_out_gather(Carver& parts, const PushExchangeShape& shape) {
  const auto ranks = static_cast<std::size_t>(shape.main_ownership.num_ranks);
  const auto tokens = static_cast<std::size_t>(shape.config.max_tokens_per_rank);
  const auto row_bytes = static_cast<std::size_t>(shape.routing_row_bytes());
  GatherMemory gather;
  gather.state = lay_out_state(parts, ranks, tokens, ranks);
  carve(parts, gather.num_rows, 1);
  carve(parts, gather.total_rows, 1);
  carve(parts, gather.rows, checked_mul(ranks * tokens, row_bytes));
  carve(parts, gather.own_rows, tokens * row_bytes / sizeof(std::uint32_t));
  if (!shape.drops) return gather;
  const std::size_t choices = ranks * tokens * static_cast<std::size_t>(shape.config.num_topk);
  cuda::ChoiceSort& sort = gather.sort;
  carve(parts, sort.keys, 2 * choices);
  carve(parts, sort.choices, 2 * choices);
  sort.work_bytes =
      cuda::sort_work_bytes(static_cast<std::int64_t>(choices), shape.config.num_experts);
  carve(parts, sort.work, sort.work_bytes);
  return gather;
}

}  // namespace

SlotMemory lay_out_slot(std::byte* base, const PushExchangeShape& shape, int rank, bool keeps_ids) {
  const ExchangeConfig& config = shape.config;
  const auto ranks = static_cast<std::size_t>(shape.main_ownership.num_ranks);
  const auto tokens = static_cast<std::size_t>(config.max_tokens_per_rank);
  const auto topk = static_cast<std::size_t>(config.num_topk);
  const auto local = static_cast<std::size_t>(shape.exchange.ownership.count(rank));
  const bool is_major = is_expert_major(config.layout);

  Carver parts(base, kPartAlignment);
  SlotMemory memory;
  memory.state = lay_out_state(parts, ranks, tokens, static_cast<std::size_t>(shape.main_topk));
  carve(parts, memory.num_rows, std::max<std::size_t>(local, 1));
  carve(parts, memory.total_rows, 1);
  if (is_major) carve(parts, memory.first_row, local);
  memory.num_rows_of_expert = memory.num_rows;
  if (shape.gathers) carve(parts, memory.num_rows_of_expert, local);
  if (keeps_ids) carve(parts, memory.own_ids, tokens * topk);
  carve(parts, memory.num_dropped, 1);
  for (std::size_t i = 0; i < config.payload_bytes.size(); ++i) {
    carve(parts, memory.payload_counters.emplace_back(), cuda::kCounterWords);
  }
  if (shape.gathers_routing) memory.gather = lay_out_gather(parts, shape);
  memory.num_bytes = parts.used_bytes();
  return memory;
}

}  // namespace switchyard
