// SPDX-License-Identifier: Apache-2.0
//
// statistics.h: percentile and median.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace switchyard::measure {

/// Returns the smallest value that a share `p` of all values do not exceed (nearest rank); 0 when
/// empty.
inline double percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(p * static_cast<double>(values.size()));
  const auto at = static_cast<std::size_t>(std::max(1.0, rank)) - 1;
  return values[std::min(at, values.size() - 1)];
}

/// Returns the middle value, or the mean of the two middle ones.
inline double median(const std::vector<double>& values) {
  if (values.size() % 2 == 1) return percentile(values, 0.5);
  std::vector<double> sorted = values;
  std::sort(sorted.begin(), sorted.end());
  const std::size_t half = sorted.size() / 2;
  return sorted.empty() ? 0 : (sorted[half - 1] + sorted[half]) / 2;
}

}  // namespace switchyard::measure
