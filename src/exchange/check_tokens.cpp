// SPDX-License-Identifier: Apache-2.0

#include "exchange/check_tokens.h"

#include "core/fail.h"
#include "core/format.h"
#include "exchange/check_matrix.h"

namespace switchyard {

bool check_tokens(const ExchangeConfig& config, std::int64_t num_scales, const TensorView& tokens,
                  const TensorView& scales) {
  const QuantScheme& scheme = config.scheme;
  const bool is_quantized = tokens.has_value() && scheme.is_quantized() && !scheme.is_simulated() &&
                            tokens.dtype() == scheme.dtype;
  if (is_quantized) {
    check_matrix(tokens, {"dispatch", "tokens", {scheme.dtype}, kAnyRows, config.hidden, true});
  } else if (scheme.is_simulated()) {
    check_matrix(tokens, {"dispatch", "tokens", {DType::kBF16}, kAnyRows, config.hidden, true});
  } else {
    check_matrix(tokens, {"dispatch",
                          "tokens",
                          {DType::kBF16, DType::kF16, DType::kF32},
                          kAnyRows,
                          config.hidden,
                          true});
  }
  if (is_quantized && num_scales > 0) {
    require(scales.has_value() && scales.dtype() == scale_dtype(scheme) && scales.num_dims() == 2 &&
                scales.shape(0) == tokens.shape(0) && scales.shape(1) == num_scales,
            Errc::kInvalidArgument,
            "dispatch: tokens are {} already, options.scales is {}, must be {} [{}, {}]",
            name_of(tokens.dtype()), scales, name_of(scale_dtype(scheme)), tokens.shape(0),
            num_scales);
    check_address(scales, "dispatch", "options.scales");
  } else {
    require(!scales.has_value(), Errc::kInvalidArgument,
            "dispatch: options.scales is {}, must be absent for tokens {} under scheme {}", scales,
            tokens, name_of(scheme));
  }
  require(tokens.stride(0) * bits_of(tokens.dtype()) % 8 == 0, Errc::kInvalidArgument,
          "dispatch: rows of tokens are {} elements of {} apart, must be whole bytes",
          tokens.stride(0), name_of(tokens.dtype()));
  return is_quantized;
}

void check_topk_weights(const ExchangeConfig& config, std::int64_t num_tokens,
                        const TensorView& topk_weights) {
  if (!topk_weights.has_value()) return;
  check_matrix(topk_weights,
               {"dispatch", "topk_weights", {DType::kF32}, num_tokens, config.num_topk});
  require(config.sends_weights || config.reduce == Reduce::kPerExpert, Errc::kInvalidArgument,
          "dispatch: topk_weights is given, but sends_weights is false and reduce per_rank weighs "
          "where the experts are; set sends_weights");
}

bool check_tensor_scale(const QuantScheme& scheme, const TensorView& tensor_scale) {
  if (scheme.group != ScaleGroup::kTensor && !scheme.needs_tensor_scale()) return false;
  require(tensor_scale.has_value() && tensor_scale.dtype() == DType::kF32 &&
              tensor_scale.num_elements() == 1,
          Errc::kInvalidArgument,
          "dispatch: tensor_scale is {}, must be f32 [1] for {}: the scale of all tokens, which no "
          "rank can know alone",
          tensor_scale, name_of(scheme));
  check_address(tensor_scale, "dispatch", "options.tensor_scale");
  return true;
}

}  // namespace switchyard
