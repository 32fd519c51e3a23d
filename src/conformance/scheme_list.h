// SPDX-License-Identifier: Apache-2.0
//
// scheme_list.h: names of scale layouts, and the schemes that cases are made of.
#pragma once

#include <vector>

#include "quant/scheme.h"

namespace switchyard::conformance {

/// All that have a name, but "none".
inline std::vector<QuantScheme> quantized_schemes() {
  std::vector<QuantScheme> schemes = named_schemes();
  schemes.erase(schemes.begin());
  return schemes;
}

inline const char* name_of(ScaleLayout layout) {
  switch (layout) {
    case ScaleLayout::kRowMajor: return "row";
    case ScaleLayout::kColumnMajor: return "column";
    case ScaleLayout::kColumnMajorAligned: return "column_aligned";
    case ScaleLayout::kSwizzled: return "swizzled";
  }
  return "unknown";
}

}  // namespace switchyard::conformance
