// SPDX-License-Identifier: Apache-2.0
//
// check_tokens.h: what the arguments of dispatch must be, wherever their memory is.
#pragma once

#include <cstdint>
#include <vector>

#include "switchyard/exchange_config.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// Tokens [T, H], to be quantized or, with `scales` [T, S], quantized already: then true.
/// Errors: kInvalidArgument.
bool check_tokens(const ExchangeConfig& config, std::int64_t num_scales, const TensorView& tokens,
                  const TensorView& scales);

/// [T, K], or absent. Errors: kInvalidArgument.
void check_topk_weights(const ExchangeConfig& config, std::int64_t num_tokens,
                        const TensorView& topk_weights);

/// A tensor for each of payload_bytes: T contiguous rows of so many bytes.
/// Errors: kInvalidArgument.
void check_payloads(const ExchangeConfig& config, const std::vector<TensorView>& payloads,
                    std::int64_t num_tokens);

/// The bound on the tokens of a rank that holds for a call: what was asked for, or, with 0, the
/// configured one. Errors: kInvalidArgument.
std::int64_t checked_max_tokens(const ExchangeConfig& config, std::int64_t asked,
                                std::int64_t num_tokens);

/// True when the scheme needs it; then it is a good one. Errors: kInvalidArgument.
bool check_tensor_scale(const QuantScheme& scheme, const TensorView& tensor_scale);

}  // namespace switchyard
