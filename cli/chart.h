// SPDX-License-Identifier: Apache-2.0
//
// chart.h: line and bar charts as inline SVG. Colours are the page's: elements have classes, and a
// series brings the name of a CSS variable.
#pragma once

#include <string>
#include <vector>

namespace switchyard::cli {

struct ChartPoint {
  double x = 0;
  double y = 0;
  std::string label;  ///< shown when the pointer rests on it
};

struct ChartSeries {
  std::string name;
  std::string color;  ///< "--ours"
  bool is_dashed = false;
  bool is_strong = false;
  std::vector<ChartPoint> points;  ///< by x
};

struct ChartAxes {
  std::string title;  ///< for screen readers
  std::string x_label;
  std::string y_label;
};

/// Both axes logarithmic, x ticks where points are; names at the ends of lines. All values above 0.
/// Empty when there is no point.
std::string line_chart(const ChartAxes& axes, const std::vector<ChartSeries>& series);

/// A bar for each point of `bars`, in percent, with marks of another series over it; a line at 100.
std::string percent_chart(const ChartAxes& axes, const ChartSeries& bars, const ChartSeries& marks);

/// Text in HTML and SVG.
std::string escaped(const std::string& text);

}  // namespace switchyard::cli
