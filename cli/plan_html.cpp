// SPDX-License-Identifier: Apache-2.0

#include "plan_html.h"

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

std::string time_text(double us) {
  if (us >= 1e5) return fmt::format("{:.1f} ms", us * 1e-3);
  return us < 100 ? fmt::format("{:.1f} us", us) : fmt::format("{:.0f} us", us);
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

double of_best(const Forecast& one, const std::function<double(const Choice&)>& value) {
  const Choice* best = best_of(one);
  return best == nullptr ? 0 : value(*best);
}

std::string time_section(const PlanReport& report) {
  const auto line = [&](const char* name, const char* color,
                        const std::function<double(const Forecast&)>& value) {
    return line_of(report, name, color, value, time_text);
  };
  std::vector<ChartSeries> lines{
      line("layer", "--ours",
           [](const Forecast& one) {
             return of_best(one, [](const Choice& best) { return best.layer_us; });
           }),
      line("dispatch", kColors[0],
           [](const Forecast& one) {
             return of_best(one, [](const Choice& best) { return best.time.dispatch.total_us; });
           }),
      line("combine", kColors[1],
           [](const Forecast& one) {
             return of_best(one, [](const Choice& best) { return best.time.combine.total_us; });
           }),
      line("experts", kColors[2], [](const Forecast& one) { return one.experts_us; })};
  lines[0].is_strong = true;
  return "<section><h2>Time</h2><p>Microseconds of the slowest rank, best choice; both axes are "
         "logarithmic.</p>" +
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

// Memory hardly depends on the contract; per_rank stands for all.
std::string memory_section(const PlanReport& report) {
  const auto choice_of = [](const Forecast& one, Layout layout) -> const Choice* {
    for (const Choice& choice : one.choices) {
      const bool is_it = choice.is_timed && choice.layout == layout &&
                         choice.reduce == Reduce::kPerRank && choice.memory.obstacle.empty();
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
  return "<section><h2>Memory of the exchange</h2><p>GB on a rank for the largest call, as the "
         "exchange allocates it, per_rank.</p>" +
         chart + "</section>\n";
}

std::string growth_row(const Forecast& one) {
  std::string html =
      fmt::format("<tr><td>{}</td><td>{:.2f}</td><td>{:.2f}</td><td>{:.2f}</td>", one.num_ranks,
                  one.ranks_per_token, one.crossings_per_token, one.balance);
  const Choice* best = best_of(one);
  if (best == nullptr) return html + "<td colspan=\"6\">no choice is possible</td></tr>\n";
  return html + fmt::format(
                    "<td>{:.1f}</td><td>{:.1f}</td><td>{:.1f}</td><td>{:.1f}</td>"
                    "<td>{:.3g}</td><td>{}</td></tr>\n",
                    best->time.dispatch.total_us, best->time.combine.total_us, one.experts_us,
                    best->layer_us, static_cast<double>(best->memory.total()) * 1e-9,
                    escaped(name_of(*best)));
}

std::string growth_section(const PlanReport& report) {
  std::string html =
      "<section><h2>Growth</h2><table><thead><tr><th>ranks</th><th>to ranks</th>"
      "<th>to hosts</th><th>balance</th><th>dispatch</th><th>combine</th><th>experts</th>"
      "<th>layer</th><th>GB</th><th>best choice</th></tr></thead>"
      "<tbody>\n";
  for (const Forecast& one : report.forecasts) html += growth_row(one);
  return html +
         "</tbody></table><p>Times in microseconds. A token travels to so "
         "many "
         "ranks, its own included, and other hosts. Balance: mean rows of a rank's experts / the "
         "largest.</p></section>\n";
}

std::string choices_section(const Forecast& one) {
  std::string html = fmt::format(
      "<section><h2>{} ranks on {} host{}</h2><p>{}</p><table><thead><tr>"
      "<th class=\"text\">choice</th><th class=\"text\">backend</th><th>dispatch</th>"
      "<th>combine</th><th>layer</th><th>window GB</th><th>all GB</th></tr></thead><tbody>\n",
      one.num_ranks, one.num_hosts, one.num_hosts == 1 ? "" : "s", escaped(one.why));
  for (std::size_t i = 0; i < one.choices.size(); ++i) {
    const Choice& choice = one.choices[i];
    const bool is_best = static_cast<int>(i) == one.best;
    html += fmt::format("<tr><td class=\"text\">{}{}{}</td><td class=\"text\">{}</td>",
                        is_best ? "<b>" : "", escaped(name_of(choice)), is_best ? "</b>" : "",
                        choice.backend);
    if (!choice.memory.obstacle.empty()) {
      html += fmt::format("<td class=\"text\" colspan=\"5\">{}</td></tr>\n",
                          escaped(choice.memory.obstacle));
      continue;
    }
    html += choice.is_timed ? fmt::format("<td>{:.1f}</td><td>{:.1f}</td><td>{:.1f}</td>",
                                          choice.time.dispatch.total_us,
                                          choice.time.combine.total_us, choice.layer_us)
                            : "<td></td><td></td><td></td>";
    html += fmt::format("<td>{:.3g}</td><td>{:.3g}</td></tr>\n",
                        static_cast<double>(choice.memory.window_bytes) * 1e-9,
                        static_cast<double>(choice.memory.total()) * 1e-9);
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
  const forecast::Question& question = report.question;
  const measure::BenchShape& shape = question.shape;
  const int least = report.forecasts.front().num_ranks;
  const int most = report.forecasts.back().num_ranks;
  const std::string title =
      fmt::format("{} on {} ranks", shape.workload.name,
                  least == most ? fmt::format("{}", most) : fmt::format("{} to {}", least, most));
  std::string html = page_start("switchyard plan: " + title);
  html += fmt::format(
      "<h1>{}</h1>\n<p>Predicted by switchyard {} plan, not measured. {} tokens per rank, hidden "
      "{}, {} experts, top-{}, {}, routing {}; {}, {} ranks per host{}, network {:.4g} GB/s per "
      "rank; experts at {:.4g} TFLOP/s with weights of {} bits{}.</p>\n",
      escaped(title), version(), shape.num_tokens, shape.workload.hidden,
      shape.workload.num_experts, shape.workload.num_topk, report.options.scheme,
      escaped(shape.routing.text()), escaped(question.machine.title), question.ranks_per_host,
      shape.num_sms == 0 ? "" : fmt::format(", {} SMs for an operation", shape.num_sms),
      question.machine.network.gb_per_second, question.experts.tflops, question.experts.weight_bits,
      question.shape.num_micro_batches == 1
          ? ""
          : fmt::format(", {} micro-batches", question.shape.num_micro_batches));
  html += time_section(report) + bytes_section(report) + memory_section(report) +
          growth_section(report);
  for (const Forecast& one : report.forecasts) html += choices_section(one);
  return html + constants_section(report) + page_end();
}

}  // namespace switchyard::cli
