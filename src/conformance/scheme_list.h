// SPDX-License-Identifier: Apache-2.0
//
// scheme_list.h: names and sets of schemes and scale layouts that cases are made of.
#pragma once

#include <vector>

#include "switchyard/quant.h"

namespace switchyard::conformance {

/// All that have a name, but "none".
inline std::vector<QuantScheme> quantized_schemes() {
  return {schemes::kFp8Block,       schemes::kFp8BlockDeepEp, schemes::kFp8Ue8m0,
          schemes::kFp8Ue8m0DeepEp, schemes::kFp8Token,       schemes::kFp8Tensor,
          schemes::kInt8Token,      schemes::kInt8Tensor,     schemes::kInt8Block,
          schemes::kNvfp4,          schemes::kMxfp4,          schemes::kMxfp6E3M2,
          schemes::kMxfp6E2M3,      schemes::kMxfp8};
}

/// Layouts that the scales of a scheme can have, the plain one first.
inline std::vector<ScaleLayout> layouts_of(const QuantScheme& scheme) {
  const bool has_row_scales =
      scheme.is_quantized() && !scheme.is_simulated() && scheme.group != ScaleGroup::kTensor;
  if (!has_row_scales) return {ScaleLayout::kRowMajor};
  std::vector<ScaleLayout> layouts{ScaleLayout::kRowMajor, ScaleLayout::kColumnMajor,
                                   ScaleLayout::kColumnMajorAligned};
  if (bits_of(scale_dtype(scheme)) == 8) layouts.push_back(ScaleLayout::kSwizzled);
  return layouts;
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
