// SPDX-License-Identifier: Apache-2.0

#include "capi/quant_fields.h"

namespace switchyard::capi {

QuantExtras QuantFields::extras() {
  QuantExtras extras;
  extras.is_scale_swizzled = !value(&sy_quant_options::no_is_scale_swizzled);
  extras.gemm1_alpha = number(&sy_quant_options::gemm1_alpha);
  extras.gemm1_beta = number(&sy_quant_options::gemm1_beta);
  extras.gemm1_clamp_limit = number(&sy_quant_options::gemm1_clamp_limit);
  extras.mx_alignment = value(&sy_quant_options::mx_alignment);
  extras.scale_format =
      named(value(&sy_quant_options::scale_format), "scale_format", ScaleFormat::kF32);
  return extras;
}

void QuantFields::check_all_read(const char* builder) const {
  const sy_quant_options& o = left_;
  const std::pair<const char*, bool> fields[] = {
      {"quant_dtype", o.quant_dtype != nullptr},
      {"weight_dtype", o.weight_dtype != nullptr},
      {"w1_scale", o.w1_scale != nullptr},
      {"w2_scale", o.w2_scale != nullptr},
      {"a1_scale", o.a1_scale != nullptr},
      {"a2_scale", o.a2_scale != nullptr},
      {"a1_gscale", o.a1_gscale != nullptr},
      {"a2_gscale", o.a2_gscale != nullptr},
      {"g1_alphas", o.g1_alphas != nullptr},
      {"g2_alphas", o.g2_alphas != nullptr},
      {"w1_zp", o.w1_zp != nullptr},
      {"w2_zp", o.w2_zp != nullptr},
      {"w1_bias", o.w1_bias != nullptr},
      {"w2_bias", o.w2_bias != nullptr},
      {"gemm1_alpha", o.gemm1_alpha != nullptr},
      {"gemm1_beta", o.gemm1_beta != nullptr},
      {"gemm1_clamp_limit", o.gemm1_clamp_limit != nullptr},
      {"scale_format", o.scale_format != nullptr},
      {"block_shape", o.block_shape[0] != 0 || o.block_shape[1] != 0},
      {"mx_alignment", o.mx_alignment != 0},
      {"weight_bits", o.weight_bits != 0},
      {"group_size", o.group_size != 0},
      {"per_act_token_quant", o.per_act_token_quant},
      {"per_out_ch_quant", o.per_out_ch_quant},
      {"no_is_scale_swizzled", o.no_is_scale_swizzled}};
  for (const auto& [name, is_left] : fields) {
    check(!is_left, "{} is set, but builder \"{}\" has no such option; clear it", name, builder);
  }
}

}  // namespace switchyard::capi
