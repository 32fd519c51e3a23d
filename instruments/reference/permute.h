// SPDX-License-Identifier: Apache-2.0
//
// permute.h: the oracle of switchyard/permute.h: for each expert in turn, the choices that name it.
//
// Letters: T tokens, K choices, L local experts, M rows, H elements per row.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "switchyard/dtype.h"

#include "reference/table.h"

namespace switchyard::reference {

/// The token and choice that a row holds; token is -1 in padding.
struct RowSource {
  std::int64_t token = -1;
  std::int64_t choice = -1;
  std::int32_t expert = -1;  ///< owner of the tile, also in padding; -1 after the last expert
};

struct AlignedRows {
  std::vector<std::int64_t> counts;     ///< [L]
  std::vector<std::int64_t> first_row;  ///< [L]
  std::vector<RowSource> rows;          ///< [M]
  Table<std::int32_t> inv_perm;         ///< [T, K]
};

/// `ids` may be negative; with a map, they index it.
AlignedRows permute(const Table<std::int64_t>& ids,
                    const std::optional<std::vector<std::int32_t>>& expert_map,
                    std::int64_t num_local_experts, std::int64_t alignment);

/// Returns [T, H]: one f32 chain per value, choices ascending, rounded once to `output`.
///   rows  [M, H]
Table<float> unpermute_and_reduce(const AlignedRows& permuted, const Table<float>& rows,
                                  const Table<float>& topk_weights, DType output);

}  // namespace switchyard::reference
