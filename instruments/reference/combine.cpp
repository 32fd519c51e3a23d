// SPDX-License-Identifier: Apache-2.0
//
// combine.cpp: the sum contracts, written exactly as they are defined.

#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "core/fail.h"
#include "reference/reference.h"

namespace switchyard::reference {
namespace {

// Maps (source rank, token, slot) to the row of the receive buffer.
using RowIndex = std::map<std::tuple<int, std::int64_t, std::int32_t>, std::int64_t>;

RowIndex index_rows(std::span<const Position> rows) {
  RowIndex index;
  for (const Position& row : rows) index[{row.source, row.token, row.slot}] = row.index;
  return index;
}

void round_all(Table<float>& table, DType dtype) {
  for (float& value : table.data) value = round_to(dtype, value);
}

void add_bias(std::span<const Table<float>> bias, std::int64_t t, Table<float>& sum) {
  for (const Table<float>& term : bias) {
    for (std::int64_t h = 0; h < sum.cols; ++h) sum(t, h) += term(t, h);
  }
}

// The ranks that hold experts of token t, in the order in which their partial sums are added.
std::vector<int> partial_ranks(const Batch& batch, const RankInput& input, std::int64_t t,
                               PartialOrder order) {
  const int num_ranks = batch.num_ranks();
  std::vector<std::int64_t> highest(static_cast<std::size_t>(num_ranks), -1);
  for (std::int64_t k = 0; k < input.topk_ids.cols; ++k) {
    const std::int32_t id = input.topk_ids(t, k);
    if (id >= 0) highest[static_cast<std::size_t>(batch.owner_of(id))] = k;
  }
  std::map<std::int64_t, int> ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const std::int64_t slot = highest[static_cast<std::size_t>(rank)];
    if (slot >= 0) ranks[order == PartialOrder::kRank ? rank : slot] = rank;
  }
  std::vector<int> in_order;
  for (const auto& [key, rank] : ranks) in_order.push_back(rank);
  return in_order;
}

// The tokens of `owner` that `rank` serves, each with its row among the rank's partial sums.
std::map<std::int64_t, std::int64_t> served_tokens(const Batch& batch, int owner, int rank) {
  std::map<std::int64_t, std::int64_t> rows;
  if (batch.num_topk() > 0) {
    for (const Position& row : dispatch_compact(batch, rank).rows) {
      if (row.source == owner) rows[row.token] = row.index;
    }
    return rows;
  }
  std::int64_t first = 0;
  for (int r = 0; r < owner; ++r) first += batch.ranks[static_cast<std::size_t>(r)].num_tokens();
  for (std::int64_t t = 0; t < batch.ranks[static_cast<std::size_t>(owner)].num_tokens(); ++t) {
    rows[t] = first + t;
  }
  return rows;
}

}  // namespace

Table<float> combine_per_expert(const Batch& batch, int owner, std::span<const ExpertMajor> placed,
                                std::span<const Table<float>> outputs, DType output,
                                std::span<const Table<float>> bias) {
  const RankInput& input = batch.ranks[static_cast<std::size_t>(owner)];
  std::vector<RowIndex> index;
  for (const ExpertMajor& layout : placed) index.push_back(index_rows(layout.rows));
  Table<float> sum(input.num_tokens(), batch.hidden());
  for (std::int64_t t = 0; t < sum.rows; ++t) {
    add_bias(bias, t, sum);
    for (std::int32_t k = 0; k < batch.num_topk(); ++k) {
      const std::int32_t id = input.topk_ids(t, k);
      if (id < 0) continue;
      const auto rank = static_cast<std::size_t>(batch.owner_of(id));
      const auto row = outputs[rank].row(index[rank].at({owner, t, k}));
      for (std::int64_t h = 0; h < sum.cols; ++h) {
        sum(t, h) = std::fma(input.topk_weights(t, k), row[static_cast<std::size_t>(h)], sum(t, h));
      }
    }
  }
  round_all(sum, output);
  return sum;
}

Table<float> reduce_on_rank(const Batch& batch, int rank, const ExpertMajor& placed,
                            const Table<float>& outputs, bool is_weighted, DType wire) {
  const RowIndex index = index_rows(placed.rows);
  const RankMajor compact = dispatch_compact(batch, rank);
  Table<float> partial(compact.num_rows, batch.hidden());
  for (const Position& row : compact.rows) {
    for (std::int32_t k = 0; k < batch.num_topk(); ++k) {
      if (compact.local_ids(row.index, k) < 0) continue;
      const auto values = outputs.row(index.at({row.source, row.token, k}));
      const float weight = is_weighted ? compact.topk_weights(row.index, k) : 1.0f;
      for (std::int64_t h = 0; h < partial.cols; ++h) {
        // A product with 1 is exact, so fma is a plain sum.
        partial(row.index, h) =
            std::fma(weight, values[static_cast<std::size_t>(h)], partial(row.index, h));
      }
    }
  }
  round_all(partial, wire);
  return partial;
}

Table<float> sum_partials(const Batch& batch, int owner, std::span<const Table<float>> partials,
                          std::span<const Table<float>> bias, DType output, PartialOrder order) {
  const RankInput& input = batch.ranks[static_cast<std::size_t>(owner)];
  std::vector<RowIndex> index;
  for (int rank = 0; rank < batch.num_ranks(); ++rank) {
    std::vector<Position> rows = dispatch_compact(batch, rank).rows;
    for (Position& row : rows) row.slot = 0;
    index.push_back(index_rows(rows));
  }
  Table<float> sum(input.num_tokens(), batch.hidden());
  for (std::int64_t t = 0; t < sum.rows; ++t) {
    add_bias(bias, t, sum);
    for (const int rank : partial_ranks(batch, input, t, order)) {
      const auto r = static_cast<std::size_t>(rank);
      const std::int64_t row = index[r].at({owner, t, 0});
      for (std::int64_t h = 0; h < sum.cols; ++h) sum(t, h) += partials[r](row, h);
    }
  }
  round_all(sum, output);
  return sum;
}

Table<float> sum_hosts(const Batch& batch, int owner, std::span<const Table<float>> partials,
                       std::span<const int> hosts, const QuantScheme& wire,
                       std::span<const Table<float>> bias, DType output) {
  Table<float> sum(batch.ranks[static_cast<std::size_t>(owner)].num_tokens(), batch.hidden());
  for (std::int64_t t = 0; t < sum.rows; ++t) add_bias(bias, t, sum);
  for (const int host : std::set<int>(hosts.begin(), hosts.end())) {
    Table<float> of_host(sum.rows, sum.cols);
    std::vector<bool> is_served(static_cast<std::size_t>(sum.rows), false);
    for (int rank = 0; rank < batch.num_ranks(); ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      if (hosts[r] != host) continue;
      for (const auto& [token, row] : served_tokens(batch, owner, rank)) {
        is_served[static_cast<std::size_t>(token)] = true;
        for (std::int64_t h = 0; h < sum.cols; ++h) of_host(token, h) += partials[r](row, h);
      }
    }
    if (wire.is_quantized()) {
      of_host = dequantize(wire, quantize(wire, of_host));
    } else {
      round_all(of_host, wire.dtype);
    }
    for (std::int64_t t = 0; t < sum.rows; ++t) {
      for (std::int64_t h = 0; is_served[static_cast<std::size_t>(t)] && h < sum.cols; ++h) {
        sum(t, h) += of_host(t, h);
      }
    }
  }
  round_all(sum, output);
  return sum;
}

Table<float> reduce_scatter(const Batch& batch, int owner, std::span<const Table<float>> rows,
                            std::span<const Table<float>> bias, DType output) {
  std::int64_t first = 0;
  for (int rank = 0; rank < owner; ++rank) {
    first += batch.ranks[static_cast<std::size_t>(rank)].num_tokens();
  }
  Table<float> sum(batch.ranks[static_cast<std::size_t>(owner)].num_tokens(), batch.hidden());
  for (std::int64_t t = 0; t < sum.rows; ++t) {
    add_bias(bias, t, sum);
    for (const Table<float>& of_rank : rows) {
      for (std::int64_t h = 0; h < sum.cols; ++h) sum(t, h) += of_rank(first + t, h);
    }
  }
  round_all(sum, output);
  return sum;
}

}  // namespace switchyard::reference
