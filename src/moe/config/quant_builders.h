// SPDX-License-Identifier: Apache-2.0
//
// quant_builders.h: the builders of QuantConfig by name, with the options that each takes.
#pragma once

#include <span>
#include <string_view>

#include "switchyard/quant_config.h"

namespace switchyard {

struct QuantBuilder {
  const char* name;
  QuantConfig (*build)(const QuantOptions&);
  std::string_view options;  ///< "w_scale": w1_scale and w2_scale; "extras": all of QuantExtras

  /// `option`: the name of a field of QuantOptions or QuantExtras.
  bool takes(std::string_view option) const;
};

std::span<const QuantBuilder> quant_builders();

}  // namespace switchyard
