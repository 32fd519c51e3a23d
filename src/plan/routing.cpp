// SPDX-License-Identifier: Apache-2.0
//
// Two passes over the ids. The first counts the rows of each expert; prefix sums over the counts
// give each expert's first row. The second walks (source, token, k) in ascending order and assigns
// the expert's next row, which is exactly the promised row order. No sort, no atomics.

#include "plan/routing.h"

#include <algorithm>

#include "core/bytes.h"

namespace switchyard {
namespace {

// Ids of other ranks are read from memory that those ranks can write. They are trusted to have been
// checked there, but never used as an index unchecked.
void count_load(std::span<const RankRouting> table, int num_topk, std::vector<std::int64_t>& load) {
  for (std::size_t source = 0; source < table.size(); ++source) {
    const RankRouting& routing = table[source];
    const std::int64_t num_ids = routing.num_entries() * num_topk;
    for (std::int64_t i = 0; i < num_ids; ++i) {
      const std::uint16_t id = routing.topk_ids[i];
      if (id == kNoExpert) continue;
      if (id >= load.size()) {
        fail(Errc::kInternal, "dispatch: rank {} names expert {} of {}", source, id, load.size());
      }
      if (!routing.is_list) ++load[id];
    }
    for (std::size_t e = 0; routing.is_list && e < load.size(); ++e) {
      load[e] += routing.expert_counts[e];
    }
  }
}

// Every token of a list is here for an expert of this rank, and comes after the one before it.
void check_listed(const RankRouting& routing, std::size_t source, std::int64_t entry, int count) {
  const std::int32_t token = routing.tokens[entry];
  const std::int32_t before = entry == 0 ? -1 : routing.tokens[entry - 1];
  if (count > 0 && token > before && token < routing.num_tokens) return;
  fail(Errc::kInternal,
       "dispatch: rank {} lists token {} of {} after {}, with {} experts of this rank", source,
       token, routing.num_tokens, before, count);
}

}  // namespace

void ReceivePlan::build(int rank, const ExpertOwnership& ownership, int num_topk,
                        const ReceiveShape& shape, std::span<const RankRouting> table) {
  const int first_expert = ownership.first(rank);
  const int num_local = ownership.count(rank);
  const auto num_local_size = static_cast<std::size_t>(num_local);
  arrivals.clear();
  placements.clear();
  expert_load.assign(static_cast<std::size_t>(ownership.num_experts), 0);
  count_load(table, num_topk, expert_load);

  num_rows.resize(num_local_size);
  first_row.resize(num_local_size);
  std::int64_t next_start = 0;
  for (int e = 0; e < num_local; ++e) {
    const auto i = static_cast<std::size_t>(e);
    const std::int64_t rows = expert_load[static_cast<std::size_t>(first_expert + e)];
    num_rows[i] = static_cast<std::int32_t>(rows);
    first_row[i] = shape.layout == Layout::kBatched ? e * shape.capacity : next_start;
    next_start += align_up(rows, shape.alignment);
  }

  place_choices(first_expert, num_topk, shape.layout == Layout::kAllGather, table);
  for (std::size_t e = 0; e < num_local_size; ++e) {
    if (cursor_[e] == first_row[e] + num_rows[e]) continue;
    fail(Errc::kInternal, "dispatch: {} rows for expert {} are announced, ids name {}", num_rows[e],
         first_expert + static_cast<int>(e), cursor_[e] - first_row[e]);
  }
  if (is_expert_major(shape.layout)) {
    num_buffer_rows = shape.layout == Layout::kBatched ? num_local * shape.capacity : next_start;
  } else {
    place_tokens(shape);
  }
  if (shape.is_worst_case) num_buffer_rows = max_buffer_rows(rank, ownership, num_topk, shape);
}

void ReceivePlan::place_choices(int first_expert, int num_topk, bool takes_every_token,
                                std::span<const RankRouting> table) {
  std::vector<std::int64_t>& next_row = cursor_;
  next_row.assign(first_row.begin(), first_row.end());
  first_arrival.assign(table.size() + 1, 0);
  for (std::size_t s = 0; s < table.size(); ++s) {
    for (std::int64_t entry = 0; entry < table[s].num_entries(); ++entry) {
      const std::uint16_t* ids = table[s].topk_ids + entry * num_topk;
      const auto first = static_cast<std::int32_t>(placements.size());
      for (int k = 0; k < num_topk; ++k) {
        const int local = int{ids[k]} - first_expert;
        if (ids[k] == kNoExpert || local < 0 || local >= static_cast<int>(num_rows.size()))
          continue;
        placements.push_back({next_row[static_cast<std::size_t>(local)]++, local, k});
      }
      const auto count = static_cast<std::int32_t>(placements.size()) - first;
      if (table[s].is_list) check_listed(table[s], s, entry, count);
      if (count == 0 && !takes_every_token) continue;
      const std::int64_t t = table[s].is_list ? table[s].tokens[entry] : entry;
      arrivals.push_back(
          {0, static_cast<std::int32_t>(s), static_cast<std::int32_t>(t), first, count});
    }
    first_arrival[s + 1] = static_cast<std::int64_t>(arrivals.size());
  }
}

void ReceivePlan::place_tokens(const ReceiveShape& shape) {
  first_row.clear();
  for (std::size_t a = 0; a < arrivals.size(); ++a) {
    Arrival& arrival = arrivals[a];
    arrival.row = static_cast<std::int64_t>(a);
    if (shape.layout == Layout::kByRank) {
      arrival.row += arrival.source * shape.max_tokens -
                     first_arrival[static_cast<std::size_t>(arrival.source)];
    }
    for (std::int32_t i = 0; i < arrival.count; ++i) {
      placements[static_cast<std::size_t>(arrival.first + i)].row = arrival.row;
    }
  }
  const auto num_sources = static_cast<std::int64_t>(first_arrival.size()) - 1;
  num_buffer_rows = shape.layout == Layout::kByRank ? num_sources * shape.max_tokens
                                                    : static_cast<std::int64_t>(arrivals.size());
}

std::int64_t max_buffer_rows(int rank, const ExpertOwnership& ownership, int num_topk,
                             const ReceiveShape& shape) {
  const std::int64_t num_local = ownership.count(rank);
  const std::int64_t all_tokens = checked_mul<std::int64_t>(ownership.num_ranks, shape.max_tokens);
  if (shape.layout == Layout::kBatched) return checked_mul(num_local, shape.capacity);
  if (shape.layout != Layout::kExpanded) return all_tokens;
  // A token may name one expert K times, so min(K, L) does not bound its rows here.
  std::int64_t rows = num_local == 0 ? 0 : checked_mul<std::int64_t>(all_tokens, num_topk);
  if (shape.capacity > 0) rows = std::min(rows, checked_mul(num_local, shape.capacity));
  const std::int64_t started = std::min(num_local, rows);
  return checked_add(rows, checked_mul(started, shape.alignment - 1));
}

void SendPlan::build(const ExpertOwnership& ownership, int num_topk, Layout layout,
                     const RankRouting& own) {
  num_tokens_to.assign(static_cast<std::size_t>(ownership.num_ranks), 0);
  ranks.clear();
  first_rank.assign(1, 0);
  const bool is_everywhere = num_topk == 0 || ownership.is_sliced;
  for (std::int64_t t = 0; t < own.num_tokens; ++t) {
    const auto begin = static_cast<std::ptrdiff_t>(ranks.size());
    // k descends, so that each rank is first met at its highest k.
    for (int k = is_everywhere ? -1 : num_topk - 1; k >= 0; --k) {
      const std::uint16_t id = own.topk_ids[t * num_topk + k];
      if (id == kNoExpert) continue;
      const int rank = ownership.owner(id);
      const bool seen = std::any_of(ranks.begin() + begin, ranks.end(),
                                    [&](const TokenRank& r) { return r.rank == rank; });
      if (!seen) ranks.push_back({rank, k});
    }
    for (int rank = 0; is_everywhere && rank < ownership.num_ranks; ++rank) {
      ranks.push_back({rank, -1});
    }
    const auto by_order = [&](const TokenRank& a, const TokenRank& b) {
      return layout == Layout::kAllGather ? a.rank < b.rank : a.highest_k < b.highest_k;
    };
    std::sort(ranks.begin() + begin, ranks.end(), by_order);
    for (auto r = ranks.begin() + begin; r != ranks.end(); ++r) {
      ++num_tokens_to[static_cast<std::size_t>(r->rank)];
    }
    first_rank.push_back(static_cast<std::int64_t>(ranks.size()));
  }
}

}  // namespace switchyard
