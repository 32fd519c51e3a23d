// SPDX-License-Identifier: Apache-2.0
//
// dispatch.cpp: where every row lands. Each layout is a literal reading of its order: loops over
// (expert, source rank, token, slot) or (source rank, token) append the rows that belong here.

#include <algorithm>

#include "core/fail.h"
#include "reference/reference.h"

namespace switchyard::reference {
namespace {

// Collects rows in order, with counts and segments; `index` counts from 0 within each expert.
ExpertMajor collect_by_expert(const Batch& batch, int rank) {
  check_batch(batch);
  const int num_ranks = batch.num_ranks();
  const std::int32_t first = batch.first_expert(rank);
  const std::int32_t num_local = batch.num_local_experts(rank);
  ExpertMajor placed;
  placed.segment_counts = Table<std::int64_t>(num_local, num_ranks);
  placed.segment_first = Table<std::int64_t>(num_local, num_ranks);
  for (std::int32_t e = 0; e < num_local; ++e) {
    std::int64_t count = 0;
    for (int source = 0; source < num_ranks; ++source) {
      placed.segment_first(e, source) = count;
      const Table<std::int32_t>& ids = batch.ranks[static_cast<std::size_t>(source)].topk_ids;
      for (std::int64_t t = 0; t < ids.rows; ++t) {
        for (std::int32_t k = 0; k < ids.cols; ++k) {
          if (ids(t, k) == first + e) placed.rows.push_back({source, t, k, e, count++});
        }
      }
      placed.segment_counts(e, source) = count - placed.segment_first(e, source);
    }
    placed.counts.push_back(count);
  }
  return placed;
}

// Offsets the rows of every expert by its first row.
void add_first_rows(ExpertMajor& placed) {
  for (Position& row : placed.rows)
    row.index += placed.first_row[static_cast<std::size_t>(row.expert)];
  for (std::int64_t e = 0; e < placed.segment_first.rows; ++e) {
    for (std::int64_t& first : placed.segment_first.row(e)) {
      first += placed.first_row[static_cast<std::size_t>(e)];
    }
  }
}

// `index` counts from 0 within each source rank. Tokens that want no expert of `rank` are included
// only if `takes_all`.
RankMajor collect_by_rank(const Batch& batch, int rank, bool takes_all = false) {
  check_batch(batch);
  RankMajor placed;
  for (int source = 0; source < batch.num_ranks(); ++source) {
    const Table<std::int32_t>& ids = batch.ranks[static_cast<std::size_t>(source)].topk_ids;
    std::int64_t count = 0;
    for (std::int64_t t = 0; t < ids.rows; ++t) {
      std::int32_t highest = -1;
      for (std::int32_t k = 0; k < ids.cols; ++k) {
        const std::int32_t id = ids(t, k);
        if (id >= 0 && batch.owner_of(id) == rank) highest = k;
      }
      if (highest >= 0 || takes_all) placed.rows.push_back({source, t, highest, -1, count++});
    }
    placed.source_counts.push_back(count);
  }
  return placed;
}

void fill_tables(const Batch& batch, int rank, RankMajor& placed) {
  const std::int64_t num_topk = batch.num_topk();
  const std::int32_t first = batch.first_expert(rank);
  const std::int32_t num_local = batch.num_local_experts(rank);
  placed.topk_ids = Table<std::int32_t>(placed.num_rows, num_topk, -1);
  placed.local_ids = Table<std::int32_t>(placed.num_rows, num_topk, -1);
  placed.topk_weights = Table<float>(placed.num_rows, num_topk);
  for (const Position& row : placed.rows) {
    const RankInput& input = batch.ranks[static_cast<std::size_t>(row.source)];
    for (std::int64_t k = 0; k < num_topk; ++k) {
      const std::int32_t id = input.topk_ids(row.token, k);
      placed.topk_ids(row.index, k) = id;
      placed.topk_weights(row.index, k) = input.topk_weights(row.token, k);
      if (id >= first && id < first + num_local) placed.local_ids(row.index, k) = id - first;
    }
  }
}

}  // namespace

ExpertMajor dispatch_batched(const Batch& batch, int rank, std::int64_t capacity) {
  ExpertMajor placed = collect_by_expert(batch, rank);
  for (std::size_t e = 0; e < placed.counts.size(); ++e) {
    require(placed.counts[e] <= capacity, Errc::kInvalidArgument,
            "reference: local expert {} receives {} rows, but the capacity is {}", e,
            placed.counts[e], capacity);
    placed.first_row.push_back(static_cast<std::int64_t>(e) * capacity);
  }
  placed.num_rows = static_cast<std::int64_t>(placed.counts.size()) * capacity;
  add_first_rows(placed);
  return placed;
}

ExpertMajor dispatch_expanded(const Batch& batch, int rank, std::int64_t alignment) {
  ExpertMajor placed = collect_by_expert(batch, rank);
  for (const std::int64_t count : placed.counts) {
    placed.first_row.push_back(placed.num_rows);
    placed.num_rows += count;
    while (placed.num_rows % alignment != 0) ++placed.num_rows;
  }
  add_first_rows(placed);
  return placed;
}

RankMajor dispatch_compact(const Batch& batch, int rank) {
  RankMajor placed = collect_by_rank(batch, rank);
  for (Position& row : placed.rows) row.index = placed.num_rows++;
  fill_tables(batch, rank, placed);
  return placed;
}

RankMajor dispatch_by_rank(const Batch& batch, int rank, std::int64_t max_tokens) {
  RankMajor placed = collect_by_rank(batch, rank);
  for (int source = 0; source < batch.num_ranks(); ++source) {
    const std::int64_t count = placed.source_counts[static_cast<std::size_t>(source)];
    require(count <= max_tokens, Errc::kInvalidArgument,
            "reference: rank {} sends {} rows, but max_tokens is {}", source, count, max_tokens);
  }
  for (Position& row : placed.rows) row.index += row.source * max_tokens;
  placed.num_rows = batch.num_ranks() * max_tokens;
  fill_tables(batch, rank, placed);
  return placed;
}

RankMajor dispatch_all_gather(const Batch& batch, int rank) {
  RankMajor placed = collect_by_rank(batch, rank, true);
  for (Position& row : placed.rows) row.index = placed.num_rows++;
  fill_tables(batch, rank, placed);
  return placed;
}

Batch drop_overflow(const Batch& batch, std::int64_t capacity, bool is_weighted) {
  struct Choice {
    float weight;
    std::size_t rank;
    std::size_t index;  // token * K + slot
    std::int32_t expert;
  };
  std::vector<Choice> choices;  // by (rank, token, slot)
  for (std::size_t r = 0; r < batch.ranks.size(); ++r) {
    const RankInput& input = batch.ranks[r];
    for (std::size_t i = 0; i < input.topk_ids.data.size(); ++i) {
      const float weight = is_weighted ? input.topk_weights.data[i] : 1.0f;
      if (input.topk_ids.data[i] >= 0) choices.push_back({weight, r, i, input.topk_ids.data[i]});
    }
  }
  Batch kept = batch;
  for (std::size_t c = 0; c < choices.size(); ++c) {
    std::int64_t num_before = 0;
    for (std::size_t other = 0; other < choices.size(); ++other) {
      if (choices[other].expert != choices[c].expert) continue;
      const bool is_heavier = choices[other].weight > choices[c].weight;
      const bool wins_tie = choices[other].weight == choices[c].weight && other < c;
      if (is_heavier || wins_tie) ++num_before;
    }
    if (num_before >= capacity) kept.ranks[choices[c].rank].topk_ids.data[choices[c].index] = -1;
  }
  return kept;
}

Table<float> receive(const Batch& batch, std::span<const Position> rows, std::int64_t num_rows) {
  Table<float> received(num_rows, batch.hidden());
  for (const Position& row : rows) {
    const auto from = batch.ranks[static_cast<std::size_t>(row.source)].tokens.row(row.token);
    std::copy(from.begin(), from.end(), received.row(row.index).begin());
  }
  return received;
}

QuantizedRows receive(std::span<const QuantizedRows> sent, std::span<const Position> rows,
                      std::int64_t num_rows) {
  QuantizedRows received{Table<std::uint8_t>(num_rows, sent.front().elements.cols),
                         Table<float>(num_rows, sent.front().scales.cols),
                         Table<std::uint32_t>(num_rows, sent.front().packed_scales.cols),
                         sent.front().tensor_scale};
  const auto copy_row = [](auto& to, std::int64_t to_row, const auto& from, std::int64_t from_row) {
    if (from.cols == 0) return;
    // A tensor scale applies to each of the tensor's rows.
    const auto values = from.row(from.rows == 1 ? 0 : from_row);
    std::copy(values.begin(), values.end(), to.row(to_row).begin());
  };
  for (const Position& row : rows) {
    const QuantizedRows& source = sent[static_cast<std::size_t>(row.source)];
    copy_row(received.elements, row.index, source.elements, row.token);
    copy_row(received.scales, row.index, source.scales, row.token);
    copy_row(received.packed_scales, row.index, source.packed_scales, row.token);
  }
  return received;
}

}  // namespace switchyard::reference
