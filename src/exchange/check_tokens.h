// SPDX-License-Identifier: Apache-2.0
//
// check_tokens.h: what the arguments of dispatch must be, wherever their memory is.
#pragma once

#include <cstdint>

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

/// True when the scheme needs it; then it is a good one. Errors: kInvalidArgument.
bool check_tensor_scale(const QuantScheme& scheme, const TensorView& tensor_scale);

}  // namespace switchyard
