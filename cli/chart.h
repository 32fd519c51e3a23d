// SPDX-License-Identifier: Apache-2.0
//
// chart.h: line and bar charts as inline SVG. The page sets the colours: elements have classes, and
// each series names a CSS variable.
#pragma once

#include <string>
#include <vector>

namespace switchyard::cli {

struct ChartPoint {
  double x = 0;
  double y = 0;
  std::string label;  ///< tooltip
};

struct ChartSeries {
  std::string name;
  std::string color;  ///< a CSS variable, for example "--ours"
  bool is_dashed = false;
  bool is_strong = false;
  std::vector<ChartPoint> points;  ///< ascending by x
};

struct ChartAxes {
  std::string title;  ///< for screen readers
  std::string x_label;
  std::string y_label;
};

/// Both axes are logarithmic, with x ticks at the points and names at the ends of the lines. All
/// values must be above 0. Returns an empty string when there is no point.
std::string line_chart(const ChartAxes& axes, const std::vector<ChartSeries>& series);

/// Draws one bar in percent per point of `bars`, with the marks of another series over it and a
/// line at 100.
std::string percent_chart(const ChartAxes& axes, const ChartSeries& bars, const ChartSeries& marks);

struct ChartRange {
  std::string name;  ///< at the left
  std::string color;
  double low = 0;
  double middle = 0;
  double high = 0;
};

/// Draws one line per range from `low` to `high` with a dot at `middle`, below one another, over a
/// linear axis from the least value. Returns an empty string when there is none.
std::string range_chart(const ChartAxes& axes, const std::vector<ChartRange>& ranges);

/// Escapes text for HTML and SVG.
std::string escaped(const std::string& text);

}  // namespace switchyard::cli
