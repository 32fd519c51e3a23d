// SPDX-License-Identifier: Apache-2.0

#include "reference/permute.h"

#include <cmath>

#include "reference/reference.h"

namespace switchyard::reference {
namespace {

std::int64_t local_id(const std::optional<std::vector<std::int32_t>>& map, std::int64_t id) {
  if (id < 0 || !map) return id;
  return map->at(static_cast<std::size_t>(id));
}

// The choices that name `expert`, ordered by token and choice.
std::vector<RowSource> rows_of(const Table<std::int64_t>& local_ids, std::int64_t expert) {
  std::vector<RowSource> rows;
  for (std::int64_t t = 0; t < local_ids.rows; ++t) {
    for (std::int64_t k = 0; k < local_ids.cols; ++k) {
      if (local_ids(t, k) == expert) rows.push_back({t, k, static_cast<std::int32_t>(expert)});
    }
  }
  return rows;
}

}  // namespace

AlignedRows permute(const Table<std::int64_t>& ids,
                    const std::optional<std::vector<std::int32_t>>& expert_map,
                    std::int64_t num_local_experts, std::int64_t alignment) {
  Table<std::int64_t> local_ids = ids;
  for (std::int64_t& id : local_ids.data) id = local_id(expert_map, id);
  AlignedRows permuted;
  permuted.inv_perm = Table<std::int32_t>(ids.rows, ids.cols, -1);
  for (std::int64_t e = 0; e < num_local_experts; ++e) {
    const std::vector<RowSource> rows = rows_of(local_ids, e);
    permuted.counts.push_back(static_cast<std::int64_t>(rows.size()));
    permuted.first_row.push_back(static_cast<std::int64_t>(permuted.rows.size()));
    for (const RowSource& row : rows) {
      permuted.inv_perm(row.token, row.choice) = static_cast<std::int32_t>(permuted.rows.size());
      permuted.rows.push_back(row);
    }
    while (static_cast<std::int64_t>(permuted.rows.size()) % alignment != 0) {
      permuted.rows.push_back({-1, -1, static_cast<std::int32_t>(e)});
    }
  }
  return permuted;
}

Table<float> unpermute_and_reduce(const AlignedRows& permuted, const Table<float>& rows,
                                  const Table<float>& topk_weights, DType output) {
  Table<float> sum(topk_weights.rows, rows.cols);
  for (std::int64_t t = 0; t < sum.rows; ++t) {
    for (std::int64_t k = 0; k < topk_weights.cols; ++k) {
      const std::int32_t row = permuted.inv_perm(t, k);
      if (row < 0) continue;
      for (std::int64_t h = 0; h < sum.cols; ++h) {
        sum(t, h) = std::fma(topk_weights(t, k), rows(row, h), sum(t, h));
      }
    }
  }
  for (float& value : sum.data) value = round_to(output, value);
  return sum;
}

}  // namespace switchyard::reference
