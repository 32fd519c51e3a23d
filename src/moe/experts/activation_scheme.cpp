// SPDX-License-Identifier: Apache-2.0
//
// activation_scheme.cpp: turns a configuration into the scheme of the rows on the wire.

#include "switchyard/quant_config.h"

#include "core/fail.h"

namespace switchyard {
namespace {

QuantScheme with_groups(const QuantConfig& config, const QuantScheme& by_tensor,
                        const QuantScheme& by_token, QuantScheme by_block) {
  if (config.per_act_token_quant()) return by_token;
  const auto block = config.block_shape();
  if (!block.has_value()) return by_tensor;
  by_block.block = (*block)[1];
  by_block.scale_format = config.extras().scale_format;
  return by_block;
}

}  // namespace

QuantScheme activation_scheme(const QuantConfig& config) {
  switch (config.quant_dtype()) {
    case QuantDType::kNone: return schemes::kNone;
    case QuantDType::kFp8E4M3:
      return with_groups(config, schemes::kFp8Tensor, schemes::kFp8Token, schemes::kFp8Block);
    case QuantDType::kInt8:
      return with_groups(config, schemes::kInt8Tensor, schemes::kInt8Token, schemes::kInt8Block);
    case QuantDType::kFp8: return schemes::kFp8Tensor;
    case QuantDType::kNvfp4: return schemes::kNvfp4;
    case QuantDType::kMxfp4: return schemes::kMxfp4;
    case QuantDType::kMxfp6E3M2: return schemes::kMxfp6E3M2;
    case QuantDType::kMxfp6E2M3: return schemes::kMxfp6E2M3;
    case QuantDType::kMxfp8:
    case QuantDType::kMxfp8E4M3: return schemes::kMxfp8;
    case QuantDType::kInt4:
    case QuantDType::kMxfp8E5M2:
    case QuantDType::kMxint8: break;
  }
  fail(Errc::kNotSupported, "activation_scheme: activations are {}, which has no quantizer",
       name_of(config.quant_dtype()));
}

}  // namespace switchyard
