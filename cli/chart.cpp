// SPDX-License-Identifier: Apache-2.0

#include "chart.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace switchyard::cli {
namespace {

// With U+FFFD in place of bytes that are no UTF-8, which paths may have.
std::string valid_utf8(const std::string& text) {
  using nlohmann::json;
  return json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::replace));
}

constexpr double kWidth = 800;
constexpr double kHeight = 360;
constexpr double kLeft = 64;
constexpr double kRight = 226;  // room for the names of lines
constexpr double kTop = 16;
constexpr double kBottom = 48;
constexpr double kLineHeight = 15;

// Maps the values of an axis to pixels.
struct Scale {
  double low = 1;
  double high = 10;
  double from = 0;
  double to = 1;
  bool is_log = true;

  double operator()(double value) const {
    const double share =
        is_log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
    return from + share * (to - from);
  }
};

std::string number_text(double value) {
  if (value >= 1e6) return fmt::format("{:g}M", value / 1e6);
  if (value >= 1e4) return fmt::format("{:g}k", value / 1e3);
  return fmt::format("{:g}", value);
}

std::string open_svg(const ChartAxes& axes, double right) {
  return fmt::format(
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n"
      "<text class=\"axis\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n"
      "<text class=\"axis\" transform=\"translate(14 {}) rotate(-90)\" "
      "text-anchor=\"middle\">{}</text>\n",
      kWidth, kHeight, escaped(axes.title), (kLeft + kWidth - right) / 2, kHeight - 8,
      escaped(axes.x_label), (kTop + kHeight - kBottom) / 2, escaped(axes.y_label));
}

std::string grid_line(double y, const std::string& text, double right, const char* kind = "grid") {
  return fmt::format(
      "<line class=\"{}\" x1=\"{}\" x2=\"{}\" y1=\"{:.1f}\" y2=\"{:.1f}\"/>"
      "<text class=\"tick\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>\n",
      kind, kLeft, kWidth - right, y, y, kLeft - 8, y + 4, text);
}

std::string x_tick(double x, const std::string& text) {
  return fmt::format(
      "<text class=\"tick\" x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n", x,
      kHeight - kBottom + 18, text);
}

std::string dot(double x, double y, const std::string& color, const std::string& label,
                double radius) {
  return fmt::format(
      "<circle class=\"dot\" cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" style=\"fill:var({})\">"
      "<title>{}</title></circle>\n",
      x, y, radius, color, escaped(label));
}

// Draws ticks at 1, 2 and 5 times powers of ten, or at the powers alone if those are too many.
std::string log_grid(const Scale& y) {
  const double decades = std::log10(y.high / y.low);
  std::string svg;
  for (double power = std::pow(10.0, std::floor(std::log10(y.low))); power <= y.high; power *= 10) {
    for (const double digit : {1.0, 2.0, 5.0}) {
      const double value = power * digit;
      const bool is_shown = digit == 1.0 || decades < 3;
      if (!is_shown || value < y.low * 0.999 || value > y.high * 1.001) continue;
      svg += grid_line(y(value), number_text(value), kRight);
    }
  }
  return svg;
}

// Returns the nearest value of the form {1, 2, 5} * 10^n at or below `value`, or at or above it.
double nice(double value, bool is_up) {
  const double power = std::pow(10.0, std::floor(std::log10(value)));
  double best = is_up ? power * 10 : power;
  for (const double digit : {1.0, 2.0, 5.0, 10.0}) {
    const double candidate = digit * power;
    if (is_up && candidate >= value * 0.999) best = std::min(best, candidate);
    if (!is_up && candidate <= value * 1.001) best = std::max(best, candidate);
  }
  return best;
}

std::string polyline(const ChartSeries& series, const Scale& x, const Scale& y) {
  std::string points;
  std::string dots;
  for (const ChartPoint& point : series.points) {
    points += fmt::format("{:.1f},{:.1f} ", x(point.x), y(point.y));
    if (!series.is_dashed) {
      dots += dot(x(point.x), y(point.y), series.color, point.label, series.is_strong ? 4.5 : 3);
    }
  }
  return fmt::format("<polyline class=\"line{}{}\" style=\"stroke:var({})\" points=\"{}\"/>\n{}",
                     series.is_dashed ? " dashed" : "", series.is_strong ? " strong" : "",
                     series.color, points, dots);
}

std::string shortened(const std::string& text) {
  constexpr std::size_t kLongest = 32;
  return text.size() <= kLongest ? text : text.substr(0, kLongest - 3) + "...";
}

// Places names beside the ends of their lines and pushes them apart where lines end close together.
std::string line_names(const std::vector<ChartSeries>& series, const Scale& x, const Scale& y) {
  struct Name {
    const ChartSeries* series;
    double from;
    double at;
  };
  std::vector<Name> names;
  for (const ChartSeries& one : series) {
    if (!one.points.empty()) names.push_back({&one, y(one.points.back().y), 0});
  }
  std::sort(names.begin(), names.end(),
            [](const Name& a, const Name& b) { return a.from < b.from; });
  double next = kTop;
  for (Name& name : names) {
    name.at = std::max(name.from, next);
    next = name.at + kLineHeight;
  }
  double limit = kHeight - kBottom;
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    name->at = std::min(name->at, limit);
    limit = name->at - kLineHeight;
  }
  std::string svg;
  for (const Name& name : names) {
    const ChartPoint& end = name.series->points.back();
    svg += fmt::format(
        "<path class=\"lead\" d=\"M{:.1f} {:.1f}L{:.1f} {:.1f}\"/>"
        "<text class=\"name{}\" x=\"{:.1f}\" y=\"{:.1f}\" style=\"fill:var({})\">{}</text>\n",
        x(end.x) + 6, name.from, kWidth - kRight + 10, name.at,
        name.series->is_strong ? " strong" : "", kWidth - kRight + 14, name.at + 4,
        name.series->color, escaped(shortened(name.series->name)));
  }
  return svg;
}

}  // namespace

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : valid_utf8(text)) {
    switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '"': result += "&quot;"; break;
      default: result += c;
    }
  }
  return result;
}

std::string line_chart(const ChartAxes& axes, const std::vector<ChartSeries>& series) {
  std::set<double> xs;
  std::set<double> ys;
  for (const ChartSeries& one : series) {
    for (const ChartPoint& point : one.points) {
      xs.insert(point.x);
      ys.insert(point.y);
    }
  }
  if (xs.empty()) return {};
  const double spread = xs.size() > 1 ? 1 : 2;  // a single point is centered
  const Scale x{*xs.begin() / spread, *xs.rbegin() * spread, kLeft + 16, kWidth - kRight - 8};
  const double low = nice(*ys.begin(), false);
  const Scale y{low, std::max(nice(*ys.rbegin(), true), low * 2), kHeight - kBottom, kTop};
  std::string svg = open_svg(axes, kRight) + log_grid(y);
  double last = -1e9;
  constexpr double kMinGap = 34;
  for (const double value : xs) {
    if (x(value) - last < kMinGap) continue;
    last = x(value);
    svg += x_tick(last, number_text(value));
  }
  svg += line_names(series, x, y);  // drawn first, so that the lines cover the leaders of the names
  for (const ChartSeries& one : series) svg += polyline(one, x, y);
  return svg + "</svg>\n";
}

std::string percent_chart(const ChartAxes& axes, const ChartSeries& bars,
                          const ChartSeries& marks) {
  if (bars.points.empty()) return {};
  constexpr double kNarrow = 24;
  double most = 100;
  constexpr double kMax = 200;  // marks beyond this are clamped to the edge
  for (const ChartPoint& point : marks.points) most = std::max(most, std::min(point.y, kMax));
  for (const ChartPoint& point : bars.points) most = std::max(most, point.y);
  const Scale y{0, std::ceil(most / 20) * 20, kHeight - kBottom, kTop, false};
  std::string svg = open_svg(axes, kNarrow);
  for (double value = 0; value <= y.high; value += most > kMax ? 100 : 20) {
    svg +=
        grid_line(y(value), fmt::format("{:g} %", value), kNarrow, value == 100 ? "limit" : "grid");
  }
  const double step = (kWidth - kLeft - kNarrow) / static_cast<double>(bars.points.size());
  const double width = std::min(64.0, step * 0.6);
  for (std::size_t i = 0; i < bars.points.size(); ++i) {
    const ChartPoint& point = bars.points[i];
    const double middle = kLeft + step * (static_cast<double>(i) + 0.5);
    svg += fmt::format(
        "<rect class=\"bar\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"2\" "
        "style=\"fill:var({})\"><title>{}</title></rect>"
        "<text class=\"value\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{:.0f} %</text>\n",
        middle - width / 2, y(point.y), width, y(0) - y(point.y), bars.color, escaped(point.label),
        middle, y(point.y) - 6, point.y);
    svg += x_tick(middle, number_text(point.x));
    for (const ChartPoint& mark : marks.points) {
      if (mark.x != point.x) continue;
      svg += dot(middle, y(std::min(mark.y, y.high)), marks.color, mark.label, 5);
    }
  }
  return svg + "</svg>\n";
}

std::string range_chart(const ChartAxes& axes, const std::vector<ChartRange>& ranges) {
  if (ranges.empty()) return {};
  constexpr double kNames = 250;
  constexpr double kStep = 20;
  double low = 0;
  double high = 0;
  for (const ChartRange& range : ranges) {
    low = std::min(low, range.low);
    high = std::max(high, range.high);
  }
  if (high <= low) high = low + 1;
  const double height = kTop + kStep * static_cast<double>(ranges.size()) + kBottom;
  const Scale x{low, high, kNames, kWidth - 24, false};
  std::string svg = fmt::format(
      "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{}\">\n"
      "<text class=\"axis\" x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
      kWidth, height, escaped(axes.title), (kNames + kWidth) / 2, height - 8,
      escaped(axes.x_label));
  const double step = nice((high - low) / 6, true);
  for (double value = std::ceil(low / step) * step; value <= high; value += step) {
    svg += fmt::format(
        "<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>"
        "<text class=\"tick\" x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4:g}</text>\n",
        x(value), kTop, height - kBottom, height - kBottom + 18, value);
  }
  double y = kTop + kStep / 2;
  for (const ChartRange& range : ranges) {
    svg += fmt::format(
        "<text class=\"name\" x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text>"
        "<line class=\"line strong\" style=\"stroke:var({})\" x1=\"{:.1f}\" x2=\"{:.1f}\" "
        "y1=\"{:.1f}\" y2=\"{:.1f}\"/>\n",
        kNames - 12, y + 4, escaped(range.name), range.color, x(range.low), x(range.high), y, y);
    svg += dot(x(range.middle), y, range.color,
               fmt::format("{}: {:.2f}, {:.2f} to {:.2f}", range.name, range.middle, range.low,
                           range.high),
               4.5);
    y += kStep;
  }
  return svg + "</svg>\n";
}

}  // namespace switchyard::cli
