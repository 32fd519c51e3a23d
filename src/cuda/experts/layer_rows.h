// SPDX-License-Identifier: Apache-2.0
//
// layer_rows.h: small kernels of the prepare/finalize classes and the modular kernel: renumbering
// ids, ids of expert-major rows, weights on rows. Callers have checked shapes.
#pragma once

#include <cstdint>

#include "switchyard/dtype.h"
#include "switchyard/stream.h"

#include "plan/permute.h"

namespace switchyard::cuda {

/// to[t, k] = table[id], or id + offset without a table; `none` for id -1; `invalid` for ids
/// outside [-1, num_ids).
struct RenameIdsArgs {
  IdTable from;
  IdTable to;                           ///< the output
  const std::int32_t* table = nullptr;  ///< [num_ids], or null
  std::int64_t num_ids = 0;             ///< valid ids are below this
  std::int64_t offset = 0;
  std::int64_t none = -1;
  std::int64_t invalid = -1;
  /// [1], or null: rows from *num_rows on get id `none` and weight 0.
  const std::int32_t* num_rows = nullptr;
  float* weights = nullptr;  ///< shaped as `to`, contiguous; or null
};
void rename_ids(const RenameIdsArgs& args, Stream stream);

/// For expert-major rows: ids[n] = the expert whose section holds row n, gaps included, or -1 after
/// the last section; weights of rows without a token = 0.
struct MarkRowsArgs {
  const std::int32_t* num_rows = nullptr;   ///< [L]
  const std::int64_t* first_row = nullptr;  ///< [L]
  std::int32_t num_local = 0;
  std::int32_t first_expert = 0;
  std::int64_t alignment = 1;
  std::int64_t m = 0;
  std::int64_t* ids = nullptr;             ///< [M]
  float* weights = nullptr;                ///< [M], or null
  std::int32_t* aligned_counts = nullptr;  ///< [L] counts rounded up to the alignment
  std::int32_t* end = nullptr;             ///< [1] the row after the last section
};
void mark_rows(const MarkRowsArgs& args, Stream stream);

/// to[t] = round(from[t] * round(weights[t])), to the dtype of the rows; products are in f32.
struct WeighRowsArgs {
  const void* from = nullptr;      ///< [T, H], contiguous
  void* to = nullptr;              ///< the same
  const float* weights = nullptr;  ///< [T]
  std::int64_t num_tokens = 0;
  std::int64_t hidden = 0;
  DType dtype = DType::kBF16;
};
void weigh_rows(const WeighRowsArgs& args, Stream stream);

/// weights[t] = sigmoid(hidden[t] . gate), where the dot product is one fma chain, h ascending.
struct GateWeightsArgs {
  const void* hidden = nullptr;  ///< [T, H]
  std::int64_t hidden_stride = 0;
  DType hidden_dtype = DType::kBF16;
  const void* gate = nullptr;  ///< [H]
  DType gate_dtype = DType::kBF16;
  std::int64_t num_tokens = 0;
  std::int64_t num_elements = 0;  ///< H
  float* weights = nullptr;
};
void gate_weights(const GateWeightsArgs& args, Stream stream);

}  // namespace switchyard::cuda
