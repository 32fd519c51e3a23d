// SPDX-License-Identifier: Apache-2.0

#include "global_scale.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "quant/scalar.h"

namespace switchyard::cli {

float largest_finite(const TensorView& x) {
  float largest = 0.0f;
  for (std::int64_t i = 0; i < x.num_elements(); ++i) {
    const float magnitude = std::abs(scalar::load(x.data(), x.dtype(), i));
    if (std::isfinite(magnitude)) largest = std::max(largest, magnitude);
  }
  return largest;
}

float global_scale(float amax) {
  constexpr float kLargest = 448.0f * 6.0f;
  if (amax == 0.0f) return 1.0f;
  return std::min(kLargest / amax, std::numeric_limits<float>::max());
}

}  // namespace switchyard::cli
