// SPDX-License-Identifier: Apache-2.0

#include "plan_html.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "switchyard/version.h"

#include "chart.h"
#include "page.h"

namespace switchyard::cli {
namespace {

using forecast::Choice;
using forecast::Forecast;
using forecast::MemoryUse;

/// Nothing where it cannot be made.
std::string gb_text(const MemoryUse& memory, std::size_t bytes) {
  if (!memory.is_known()) return {};
  return fmt::format("{:.3g}", static_cast<double>(bytes) * 1e-9);
}

/// One line: a value of each forecast that has one above 0.
ChartSeries line_of(const PlanReport& report, const std::string& name, const char* color,
                    const std::function<double(const Forecast&)>& value,
                    const std::function<std::string(double)>& text) {
  ChartSeries line{name, color, false, false, {}};
  for (const Forecast& one : report.forecasts) {
    const double y = value(one);
    if (y <= 0) continue;
    line.points.push_back({static_cast<double>(one.num_ranks), y,
                           fmt::format("{}, {} ranks: {}", name, one.num_ranks, text(y))});
  }
  return line;
}

double of_shown(const Forecast& one, const std::function<double(const Choice&)>& value) {
  const Choice* shown = shown_of(one);
  return shown == nullptr ? 0 : value(*shown);
}

std::string time_section(const PlanReport& report) {
  const auto line = [&](const char* name, const char* color,
                        const std::function<double(const Forecast&)>& value) {
    return line_of(report, name, color, value, time_text);
  };
  std::vector<ChartSeries> lines{
      line("layer", "--ours",
           [](const Forecast& one) {
             return of_shown(one, [](const Choice& shown) { return shown.layer_us; });
           }),
      line("dispatch", kColors[0],
           [](const Forecast& one) {
             return of_shown(one, [](const Choice& shown) { return shown.time.dispatch.total_us; });
           }),
      line("combine", kColors[1],
           [](const Forecast& one) {
             return of_shown(one, [](const Choice& shown) { return shown.time.combine.total_us; });
           }),
      line("experts", kColors[2], [](const Forecast& one) { return one.experts_us; })};
  lines[0].is_strong = true;
  return "<section><h2>Time</h2><p>Microseconds of the slowest rank, of the choice that Growth "
         "names; both axes are logarithmic.</p>" +
         line_chart({"Time against ranks", "ranks", "microseconds"}, lines) + "</section>\n";
}

std::string bytes_section(const PlanReport& report) {
  const auto text = [](double mb) { return fmt::format("{:.3g} MB", mb); };
  const auto line = [&](const char* name, const char* color,
                        const std::function<double(const Forecast&)>& bytes) {
    return line_of(
        report, name, color, [&](const Forecast& one) { return bytes(one) * 1e-6; }, text);
  };
  const std::vector<ChartSeries> lines{
      line("dispatch, inside a host", kColors[0],
           [](const Forecast& one) { return one.dispatch.busiest_inside; }),
      line("dispatch, between hosts", kColors[3],
           [](const Forecast& one) { return one.dispatch.busiest_across; }),
      line("combine, inside a host", kColors[1],
           [](const Forecast& one) { return one.combine.busiest_inside; }),
      line("combine, between hosts", kColors[4],
           [](const Forecast& one) { return one.combine.busiest_across; })};
  const std::string chart = line_chart({"Bytes against ranks", "ranks", "MB"}, lines);
  if (chart.empty()) return {};
  return "<section><h2>Bytes of the busiest link</h2><p>MB of one call that a rank sends or "
         "receives, whichever is more; counted, not estimated.</p>" +
         chart + "</section>\n";
}

// Of the contract of the shown choice; one number stands for all contracts of a layout.
std::string memory_section(const PlanReport& report) {
  const auto choice_of = [](const Forecast& one, Layout layout) -> const Choice* {
    const Choice* const shown = shown_of(one);
    for (const Choice& choice : one.choices) {
      const bool is_it = shown != nullptr && choice.is_timed && choice.layout == layout &&
                         choice.reduce == shown->reduce && choice.memory.is_known();
      if (is_it) return &choice;
    }
    return nullptr;
  };
  std::vector<ChartSeries> lines;
  const auto add = [&](const char* name, Layout layout, std::size_t (*bytes)(const MemoryUse&)) {
    lines.push_back(line_of(
        report, name, kColors[lines.size()],
        [&](const Forecast& one) {
          const Choice* choice = choice_of(one, layout);
          return choice == nullptr ? 0 : static_cast<double>(bytes(choice->memory)) * 1e-9;
        },
        [](double gb) { return fmt::format("{:.3g} GB", gb); }));
  };
  const auto total = [](const MemoryUse& memory) { return memory.total(); };
  add("expanded", Layout::kExpanded, total);
  add("batched", Layout::kBatched, total);
  add("compact", Layout::kCompact, total);
  add("windows, of each", Layout::kCompact,
      [](const MemoryUse& memory) { return memory.window_bytes; });
  const std::string chart = line_chart({"Memory against ranks", "ranks", "GB"}, lines);
  if (chart.empty()) return {};
  const bool is_beyond = std::ranges::any_of(
      report.forecasts, [](const Forecast& one) { return one.best_without_limit >= 0; });
  const std::string limit =
      is_beyond ? fmt::format("; above {} ranks, as it would without that limit", kMaxPushRanks)
                : "";
  return "<section><h2>Memory of the exchange</h2><p>GB on a rank, as the exchange allocates it, "
         "with "
         "the contract that Growth names" +
         limit + ".</p>" + chart + "</section>\n";
}

// The choice has a line of its own: its words are wider than the page beside all the numbers.
std::string growth_row(const Forecast& one) {
  constexpr int kColumns = 13;
  std::string html = fmt::format(
      "<tr "
      "class=\"upper\"><td>{}</td><td>{}</td><td>{}</td><td>{:.2f}</td><td>{:.2f}</td><td>{:.2f}</"
      "td>",
      one.num_hosts, one.num_ranks, one.num_physical, one.ranks_per_token, one.crossings_per_token,
      one.balance);
  const Choice* shown = shown_of(one);
  if (shown == nullptr) {
    html += fmt::format("<td colspan=\"{}\"></td>", kColumns - 6);
  } else {
    const double inside = std::max(one.dispatch.busiest_inside, one.combine.busiest_inside);
    const double across = std::max(one.dispatch.busiest_across, one.combine.busiest_across);
    html += fmt::format(
        "<td>{:.1f}</td><td>{:.1f}</td><td>{:.1f}</td><td>{:.1f}</td><td>{:.2f}</td>"
        "<td>{:.2f}</td><td>{}</td>",
        shown->time.dispatch.total_us, shown->time.combine.total_us, one.experts_us,
        shown->layer_us, inside * 1e-6, across * 1e-6,
        gb_text(shown->memory, shown->memory.total()));
  }
  return html + fmt::format("</tr>\n<tr><td class=\"text\" colspan=\"{}\">{}</td></tr>\n", kColumns,
                            escaped(verdict_of(one)));
}

std::string growth_section(const PlanReport& report) {
  std::string html =
      "<section><h2>Growth</h2><table class=\"wide\"><thead><tr><th>hosts</th><th>ranks</th>"
      "<th>physical</th><th>to ranks</th><th>to hosts</th><th>balance</th><th>dispatch</th>"
      "<th>combine</th><th>experts</th><th>layer</th><th>inside</th><th>between</th><th>GB</th>"
      "</tr></thead><tbody>\n";
  for (const Forecast& one : report.forecasts) html += growth_row(one);
  return html +
         "</tbody></table><p>Below each line the best choice. Times of the slowest rank in "
         "microseconds. Physical: experts with "
         "their redundant copies. A token travels to so many ranks, its own included, and other "
         "hosts. Balance: mean rows of a rank's experts / the largest. Inside, between: MB on the "
         "busiest link of a rank in one call, inside a host and between hosts.</p></section>\n";
}

std::string choices_section(const Forecast& one) {
  std::string html = fmt::format("<section><h2>{} rank{} on {} host{}</h2><p>{}</p>", one.num_ranks,
                                 one.num_ranks == 1 ? "" : "s", one.num_hosts,
                                 one.num_hosts == 1 ? "" : "s", escaped(one.why));
  for (const std::string& call : calls_of(one)) html += "<p>" + escaped(call) + "</p>";
  html +=
      "<table><thead><tr><th class=\"text\">choice</th><th class=\"text\">backend</th>"
      "<th>dispatch</th><th>combine</th><th>layer</th><th>window GB</th><th>all GB</th>"
      "<th class=\"text\"></th></tr></thead><tbody>\n";
  for (std::size_t i = 0; i < one.choices.size(); ++i) {
    const Choice& choice = one.choices[i];
    const bool is_best = static_cast<int>(i) == (one.best >= 0 ? one.best : one.best_without_limit);
    html += fmt::format("<tr><td class=\"text\">{}{}{}</td><td class=\"text\">{}</td>",
                        is_best ? "<b>" : "", escaped(name_of(choice)), is_best ? "</b>" : "",
                        choice.backend);
    html += choice.is_timed ? fmt::format("<td>{:.1f}</td><td>{:.1f}</td><td>{:.1f}</td>",
                                          choice.time.dispatch.total_us,
                                          choice.time.combine.total_us, choice.layer_us)
                            : "<td></td><td></td><td></td>";
    html += fmt::format("<td>{}</td><td>{}</td><td class=\"text\">{}</td></tr>\n",
                        gb_text(choice.memory, choice.memory.window_bytes),
                        gb_text(choice.memory, choice.memory.total()), escaped(choice.why_not));
  }
  return html + "</tbody></table></section>\n";
}

std::string constants_section(const PlanReport& report) {
  std::string html =
      "<section><h2>Constants</h2><table><thead><tr><th class=\"text\">name</th>"
      "<th class=\"text\">value</th><th class=\"text\">source</th></tr></thead><tbody>\n";
  for (const forecast::Constant& one : report.question.machine.constants) {
    html += fmt::format(
        "<tr><td class=\"text\">{}</td><td class=\"text\">{} {}</td><td class=\"text\">{}</td></tr>"
        "\n",
        escaped(one.name), escaped(one.value), escaped(one.unit), escaped(one.source));
  }
  return html + "</tbody></table></section>\n";
}

}  // namespace

std::string to_html(const PlanReport& report) {
  const int least = report.forecasts.front().num_ranks;
  const int most = report.forecasts.back().num_ranks;
  const std::string title =
      fmt::format("{} on {} ranks", report.question.shape.workload.name,
                  least == most ? fmt::format("{}", most) : fmt::format("{} to {}", least, most));
  std::string html = page_start("switchyard plan: " + title);
  html += fmt::format("<h1>{}</h1>\n<p>Predicted by switchyard {} plan, not measured.</p>\n<dl>",
                      escaped(title), version());
  for (const auto& [name, value] : settings_of(report)) html += entry(name, value);
  html += "</dl>\n";
  html += time_section(report) + bytes_section(report) + memory_section(report) +
          growth_section(report);
  for (const Forecast& one : report.forecasts) html += choices_section(one);
  html += fmt::format("<p>{}</p>\n", layouts_note());
  return html + constants_section(report) + page_end();
}

}  // namespace switchyard::cli
