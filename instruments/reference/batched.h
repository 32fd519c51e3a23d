// SPDX-License-Identifier: Apache-2.0
//
// batched.h: the oracle of the batched format on one rank, without an exchange, modelled on vLLM's
// reference BatchedPrepareAndFinalize: a loop over experts and the tokens that chose each one.
//
// Letters: T tokens, K choices, L local experts, C capacity, H elements per row.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "reference/reference.h"

namespace switchyard::reference {

struct PreparedBatch {
  Table<float> rows;                     ///< [L C, H], zero where there is no token
  std::vector<QuantizedRows> quantized;  ///< [L] the valid rows of each expert, or empty
  std::vector<std::int32_t> counts;  ///< [E], of which only [0, L) are meaningful: local experts
};

/// A token's element times its weight, as before dispatch: vLLM's a1 * topk_weights.to(a1.dtype).
float weigh_input(DType dtype, float x, float weight);

/// What rank `rank` prepares from its own tokens. A token that lists an expert twice appears once.
/// With `weighs_input` (K must be 1) rows are weigh_input of tokens and weight, in bf16.
/// Errors: kInvalidArgument (an expert with more than `capacity` tokens; weighs_input with K > 1).
PreparedBatch prepare_batched(const RankInput& input, std::int32_t num_experts,
                              std::int32_t num_local_experts, std::int32_t rank,
                              std::int64_t capacity, const QuantScheme& scheme = schemes::kNone,
                              std::optional<float> static_scale = {}, bool weighs_input = false);

/// The inverse: one f32 chain over experts, ascending, of each row times the token's weights for
/// that expert, rounded once to `output`. Returns [T, H].
///   outputs  [L C, H] rows of experts, in the order of prepare_batched
Table<float> finalize_batched(const RankInput& input, std::int32_t num_local_experts,
                              std::int32_t rank, const Table<float>& outputs, DType output,
                              bool weighs_input = false);

}  // namespace switchyard::reference
