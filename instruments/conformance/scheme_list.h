// SPDX-License-Identifier: Apache-2.0
//
// scheme_list.h: the schemes that cases are made of.
#pragma once

#include <vector>

#include "switchyard/scale_layout.h"

#include "quant/scheme.h"

namespace switchyard::conformance {

/// All that have a name, but "none".
inline std::vector<QuantScheme> quantized_schemes() {
  std::vector<QuantScheme> schemes = named_schemes();
  schemes.erase(schemes.begin());
  return schemes;
}

}  // namespace switchyard::conformance
