// SPDX-License-Identifier: Apache-2.0
//
// check_returns.h: checks the weights passed to combine, in host or device memory alike. All of
// them may be absent. Errors: kInvalidArgument.
#pragma once

#include <cstdint>

#include "switchyard/exchange_config.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// topk_weights [T, K] f32, which replace the weights passed to dispatch.
void check_new_weights(const ExchangeConfig& config, std::int64_t num_tokens,
                       const TensorView& topk_weights);

/// row_weights f32: one per row of the receive buffer, or K in layouts with one row per token.
void check_row_weights(const ExchangeConfig& config, std::int64_t num_buffer_rows,
                       const TensorView& row_weights);

/// returned_weights [T, K] f32, an output.
void check_returned_weights(const ExchangeConfig& config, std::int64_t num_tokens,
                            const TensorView& returned_weights);

/// In a combine of both phases, a rank that wants returned_weights must pass row_weights.
void check_both_weights(const TensorView& row_weights, const TensorView& returned_weights);

}  // namespace switchyard
