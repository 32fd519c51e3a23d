// SPDX-License-Identifier: Apache-2.0
//
// prepare_checks.h: what the prepare/finalize classes of both processors refuse for the shape of
// their arguments. Errors: kInvalidArgument.
#pragma once

#include "moe/prepare/prepare_recipe.h"

namespace switchyard {

/// Of apply_router_weight_on_input.
void check_weighed_input(const PrepareRecipe& recipe, const PrepareFinalizeConfig& config,
                         const TensorView& hidden, const TensorView& topk_weights);

/// What combine is given of the experts' rows.
struct ReturnedRows {
  TensorView rows;         ///< [M, H] as they are, or [M, K, H]
  bool needs_sum = false;  ///< this rank's rows of each token are weighed and summed first
};

/// `num_rows`: of the receive buffer.
ReturnedRows check_returned_rows(const PrepareRecipe& recipe, const PrepareFinalizeConfig& config,
                                 std::int64_t num_rows, const TensorView& rows,
                                 const WeightAndReduce& policy);

/// The max_tokens of a call: decode sizes grow in powers of two, so that few shapes occur (as vLLM
/// does for its graphs).
std::int64_t rounded_max_tokens(const PrepareRecipe& recipe, const PrepareFinalizeConfig& config,
                                std::int64_t max_tokens);

/// Experts that take packed UE8M0 scales get them from the senders.
bool sends_packed_scales(const PrepareRecipe& recipe, const PrepareFinalizeConfig& config,
                         bool experts_take_them);

}  // namespace switchyard
