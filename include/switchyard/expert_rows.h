// SPDX-License-Identifier: Apache-2.0
//
// expert_rows.h: what dispatch hands to the experts.
//
// Letters: L local experts, N rows of the receive buffer, H elements per row, S scales per row.
#pragma once

#include <cstdint>
#include <span>

#include "switchyard/quant.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// Rows grouped by local expert. `batched` and `expanded` layouts differ only in first_row: there
/// is one code path for both.
struct ExpertRows {
  TensorView rows;                          ///< [N, H] bf16, or as stored_dtype() says
  TensorView scales;                        ///< [N, S]; [1] for one scale a tensor; else absent
  QuantScheme scheme;                       ///< how rows are quantized; kNone: bf16
  std::span<const std::int64_t> first_row;  ///< [L] first row of each expert
  std::span<const std::int32_t> num_rows;   ///< [L] valid rows of each; the rest is undefined
  TensorView tensor_scale{};                ///< [1] f32: the global scale of nvfp4; else absent
};

}  // namespace switchyard
