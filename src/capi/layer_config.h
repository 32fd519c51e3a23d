// SPDX-License-Identifier: Apache-2.0
//
// layer_config.h: configurations of the C interface as those of C++.
#pragma once

#include "switchyard/c/config.h"
#include "switchyard/c/exchange.h"
#include "switchyard/exchange_config.h"
#include "switchyard/exchange_types.h"
#include "switchyard/moe_config.h"
#include "switchyard/quant_config.h"

namespace switchyard::capi {

MoEConfig moe_config_of(const sy_moe_config* moe);
/// NULL: not quantized.
QuantConfig quant_config_of(sy_quant_config* quant);
ExchangeConfig exchange_config_of(const sy_exchange_config* config);
ExchangeOptions exchange_options_of(const sy_exchange_options* options);

}  // namespace switchyard::capi
