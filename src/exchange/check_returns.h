// SPDX-License-Identifier: Apache-2.0
//
// check_returns.h: what results and weights given to combine must be, on either device. Weights may
// be absent. Errors: kInvalidArgument.
#pragma once

#include <cstdint>

#include "switchyard/exchange_config.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// topk_weights [T, K] f32, which replace the weights passed to dispatch.
void check_new_weights(const ExchangeConfig& config, std::int64_t num_tokens,
                       const TensorView& topk_weights);

/// A row of results for each of the N rows of the receive buffer, contiguous; [N, H], or [L, C, H].
void check_results(const ExchangeConfig& config, std::int64_t num_buffer_rows,
                   const TensorView& rows);

/// For each of N rows of the receive buffer one, or K in layouts with a row a token.
void check_row_weights(const ExchangeConfig& config, std::int64_t num_buffer_rows,
                       const TensorView& row_weights);

/// returned_weights [T, K] f32, an output.
void check_returned_weights(const ExchangeConfig& config, std::int64_t num_tokens,
                            const TensorView& returned_weights);

/// In a combine of both phases, a rank that wants returned_weights must pass row_weights.
void check_both_weights(const TensorView& row_weights, const TensorView& returned_weights);

}  // namespace switchyard
