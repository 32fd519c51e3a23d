// SPDX-License-Identifier: Apache-2.0
//
// quant_fields.h: the options of all builders of QuantConfig in one struct. Reading a field clears
// it; what a builder does not read, and is set, is refused.
#pragma once

#include <optional>
#include <utility>

#include "switchyard/c/config.h"
#include "switchyard/quant_config.h"

#include "capi/names.h"
#include "capi/tensors.h"

namespace switchyard::capi {

/// What a builder has not read yet.
class QuantFields {
 public:
  explicit QuantFields(const sy_quant_options& given) : left_(given) { left_.struct_size = 0; }

  TensorView tensor(const sy_tensor* sy_quant_options::*field, const char* name) {
    return optional_view(std::exchange(left_.*field, nullptr), name);
  }
  template <typename T>
  T value(T sy_quant_options::*field) {
    return std::exchange(left_.*field, T{});
  }
  std::optional<float> number(const float* sy_quant_options::*field) {
    const float* value = std::exchange(left_.*field, nullptr);
    return value == nullptr ? std::nullopt : std::optional(*value);
  }
  std::optional<QuantDType> dtype(const char* sy_quant_options::*field, const char* name) {
    const char* value = std::exchange(left_.*field, nullptr);
    if (value == nullptr) return std::nullopt;
    return named<QuantDType>(value, name);
  }
  std::optional<BlockShape> block() {
    const BlockShape block{std::exchange(left_.block_shape[0], 0),
                           std::exchange(left_.block_shape[1], 0)};
    return block == BlockShape{} ? std::nullopt : std::optional(block);
  }

  // Groups of fields that builders share.
  template <typename Options>
  void scales_of_weights(Options& o) {
    o.w1_scale = tensor(&sy_quant_options::w1_scale, "w1_scale");
    o.w2_scale = tensor(&sy_quant_options::w2_scale, "w2_scale");
  }
  template <typename Options>
  void scales_of_activations(Options& o) {
    o.a1_scale = tensor(&sy_quant_options::a1_scale, "a1_scale");
    o.a2_scale = tensor(&sy_quant_options::a2_scale, "a2_scale");
  }
  template <typename Options>
  void global_scales(Options& o) {
    o.a1_gscale = tensor(&sy_quant_options::a1_gscale, "a1_gscale");
    o.a2_gscale = tensor(&sy_quant_options::a2_gscale, "a2_gscale");
  }
  template <typename Options>
  void alphas(Options& o) {
    o.g1_alphas = tensor(&sy_quant_options::g1_alphas, "g1_alphas");
    o.g2_alphas = tensor(&sy_quant_options::g2_alphas, "g2_alphas");
  }
  template <typename Options>
  void zero_points(Options& o) {
    o.w1_zp = tensor(&sy_quant_options::w1_zp, "w1_zp");
    o.w2_zp = tensor(&sy_quant_options::w2_zp, "w2_zp");
  }
  template <typename Options>
  void biases(Options& o) {
    o.w1_bias = tensor(&sy_quant_options::w1_bias, "w1_bias");
    o.w2_bias = tensor(&sy_quant_options::w2_bias, "w2_bias");
  }
  template <typename Options>
  void flags(Options& o) {
    o.per_act_token_quant = value(&sy_quant_options::per_act_token_quant);
    o.per_out_ch_quant = value(&sy_quant_options::per_out_ch_quant);
  }
  QuantExtras extras();

  /// Errors: kInvalidArgument, which names what is left.
  void check_all_read(const char* builder) const;

 private:
  sy_quant_options left_;
};

}  // namespace switchyard::capi
