// SPDX-License-Identifier: Apache-2.0
//
// check_tokens.h: checks the arguments of dispatch, in host or device memory alike.
#pragma once

#include <cstdint>
#include <vector>

#include "switchyard/exchange_config.h"
#include "switchyard/exchange_types.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// Tokens [T, H], either to be quantized by dispatch or already quantized, with options.scales
/// [T, S]. Returns true when they are already quantized. Errors: kInvalidArgument.
bool check_tokens(const ExchangeConfig& config, std::int64_t num_scales, const TensorView& tokens,
                  const DispatchOptions& options);

/// Rows lose digits only to a type that was chosen: to bf16, which nobody need choose, they must
/// not be narrowed. `setting`: the member of ExchangeConfig that is `wire`. Errors:
/// kInvalidArgument.
void check_wire_type(const char* function, const char* name, const TensorView& rows,
                     const QuantScheme& wire, const char* setting);

/// topk_weights [T, K] f32, or absent. Errors: kInvalidArgument.
void check_topk_weights(const ExchangeConfig& config, std::int64_t num_tokens,
                        const TensorView& topk_weights);

/// One tensor per entry of payload_bytes, with T contiguous rows of that many bytes.
/// Errors: kInvalidArgument.
void check_payloads(const ExchangeConfig& config, const std::vector<TensorView>& payloads,
                    std::int64_t num_tokens);

/// The limit on tokens per rank in one call: `asked`, or max_tokens_per_rank when `asked` is 0.
/// Errors: kInvalidArgument, also when num_tokens exceeds it.
std::int64_t checked_max_tokens(const ExchangeConfig& config, std::int64_t asked,
                                std::int64_t num_tokens);

/// Returns whether the scheme needs a tensor_scale, which is then valid. Errors: kInvalidArgument.
bool check_tensor_scale(const QuantScheme& scheme, const TensorView& tensor_scale);

}  // namespace switchyard
