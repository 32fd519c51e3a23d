// SPDX-License-Identifier: Apache-2.0

#include "exchange/check_tokens.h"

#include "core/check_matrix.h"
#include "core/fail.h"
#include "core/format.h"

namespace switchyard {

void check_wire_type(const char* function, const char* name, const TensorView& rows,
                     const QuantScheme& wire, const char* setting) {
  require(wire.is_quantized() || wire.dtype != DType::kBF16 || rows.dtype() == wire.dtype ||
              rows.num_elements() == 0,
          Errc::kInvalidArgument,
          "{}: {} is {}, must be bf16, as which rows travel with {} none; set {} to {} on every "
          "rank, or round them",
          function, name, rows, setting, setting, name_of(rows.dtype()));
}

bool check_tokens(const ExchangeConfig& config, std::int64_t num_scales, const TensorView& tokens,
                  const DispatchOptions& options) {
  const QuantScheme& scheme = config.scheme;
  const TensorView& scales = options.scales;
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
    if (!options.routing_only) check_wire_type("dispatch", "tokens", tokens, scheme, "scheme");
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
  require(
      config.sends_weights || config.reduce == Reduce::kPerExpert, Errc::kInvalidArgument,
      "dispatch: topk_weights is given, but sends_weights is false and reduce {} weighs where the "
      "experts are; set sends_weights",
      name_of(config.reduce));
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

void check_payloads(const ExchangeConfig& config, const std::vector<TensorView>& payloads,
                    std::int64_t num_tokens) {
  require(payloads.size() == config.payload_bytes.size(), Errc::kInvalidArgument,
          "dispatch: {} payloads are given, the configuration has {}", payloads.size(),
          config.payload_bytes.size());
  for (std::size_t i = 0; i < payloads.size(); ++i) {
    const TensorView& payload = payloads[i];
    const bool has_rows = payload.has_value() && payload.num_dims() >= 1 &&
                          payload.shape(0) == num_tokens && payload.is_contiguous();
    const auto bytes = static_cast<std::uint64_t>(num_tokens) *
                       static_cast<std::uint64_t>(config.payload_bytes[i]);
    require(has_rows && payload.num_bytes() == bytes, Errc::kInvalidArgument,
            "dispatch: payloads[{}] is {}, must be contiguous, {} rows of {} bytes", i, payload,
            num_tokens, config.payload_bytes[i]);
    check_address(payload, "dispatch", fmt::format("payloads[{}]", i));
  }
}

std::int64_t checked_max_tokens(const ExchangeConfig& config, std::int64_t asked,
                                std::int64_t num_tokens) {
  const std::int64_t most = config.max_tokens_per_rank;
  require(asked >= 0 && asked <= most, Errc::kInvalidArgument,
          "dispatch: options.max_tokens is {}, must be from 0 to max_tokens_per_rank, {}", asked,
          most);
  const std::int64_t max_tokens = asked == 0 ? most : asked;
  require(num_tokens <= max_tokens, Errc::kInvalidArgument,
          "dispatch: tokens has {} rows, but {} is {}", num_tokens,
          asked == 0 ? "max_tokens_per_rank" : "options.max_tokens", max_tokens);
  return max_tokens;
}

}  // namespace switchyard
