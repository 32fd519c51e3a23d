// SPDX-License-Identifier: Apache-2.0

#include "bench_html.h"

#include <algorithm>
#include <array>
#include <map>

#include <fmt/format.h>

#include "switchyard/version.h"

#include "chart.h"
#include "page.h"

namespace switchyard::cli {
namespace {

std::string label_of(std::int64_t tokens, double us) {
  return fmt::format("{} token{}: {}", tokens, tokens == 1 ? "" : "s", time_text(us));
}

// Returns the measured rows by number of tokens, for each number the row of the fastest SM budget.
std::vector<const BenchRow*> fastest_rows(const BenchReport& report) {
  std::map<std::int64_t, const BenchRow*> best;
  for (const BenchRow& row : report.rows) {
    if (!row.left_out.empty() || row.p50_us <= 0) continue;
    const BenchRow*& place = best[row.shape.num_tokens];
    if (place == nullptr || row.p50_us < place->p50_us) place = &row;
  }
  std::vector<const BenchRow*> rows;
  for (const auto& [tokens, row] : best) rows.push_back(row);
  return rows;
}

// Returns one line per name that the baseline has for this operation, limited to the first few.
std::vector<ChartSeries> peer_lines(const BenchReport& report) {
  std::map<std::string, ChartSeries> lines;
  std::vector<std::string> order;
  for (const BenchRow* row : fastest_rows(report)) {
    if (!report.baseline && row->baseline) {
      ChartSeries& line = lines[row->baseline->name];
      if (line.points.empty()) order.push_back(row->baseline->name);
      line.points.push_back({static_cast<double>(row->shape.num_tokens), row->baseline->us,
                             label_of(row->shape.num_tokens, row->baseline->us)});
    }
    if (!report.baseline || !is_comparable(*report.baseline, row->shape)) continue;
    for (const BaselineRow& peer : report.baseline->rows) {
      if (!is_match(peer, row->shape)) continue;
      ChartSeries& line = lines[peer.name];
      if (line.points.empty()) order.push_back(peer.name);
      const double us = peer.us * row->shape.num_layers;
      const auto tokens = static_cast<double>(peer.num_tokens);
      // Of several modes at the same number of tokens, keep the fastest.
      if (!line.points.empty() && line.points.back().x == tokens) {
        if (line.points.back().y <= us) continue;
        line.points.pop_back();
      }
      line.points.push_back(
          {tokens, us,
           fmt::format("{}, {}: {}", peer.name, peer.mode, label_of(peer.num_tokens, us))});
    }
  }
  std::vector<ChartSeries> result;
  for (const std::string& name : order) {
    if (result.size() == kColors.size()) break;
    ChartSeries line = std::move(lines[name]);
    line.name = name;
    line.color = kColors[result.size()];
    result.push_back(std::move(line));
  }
  return result;
}

std::string latency_section(const BenchReport& report) {
  ChartSeries ours{"switchyard", "--ours", false, true, {}};
  ChartSeries floor{"floor of the machine", "--floor", true, false, {}};
  for (const BenchRow* row : fastest_rows(report)) {
    const auto tokens = static_cast<double>(row->shape.num_tokens);
    ours.points.push_back({tokens, row->p50_us,
                           fmt::format("{}, p99 {}", label_of(row->shape.num_tokens, row->p50_us),
                                       time_text(row->p99_us))});
    if (row->floor_us > 0) floor.points.push_back({tokens, row->floor_us, ""});
  }
  std::vector<ChartSeries> series = peer_lines(report);
  series.push_back(floor);
  series.push_back(ours);
  const std::string chart =
      line_chart({"time against tokens", "tokens of each rank", "microseconds, median"}, series);
  if (chart.empty()) return {};
  return fmt::format(
      "<section><h2>Time against tokens</h2><p>One {}, the slowest rank, median of {} iterations. "
      "Both axes are logarithmic; lower is better.</p>{}</section>\n",
      escaped(report.options.op), report.options.runs, chart);
}

std::string fraction_section(const BenchReport& report) {
  ChartSeries ours{"", "--ours", false, true, {}};
  ChartSeries peers{"", "--c0", false, false, {}};
  for (const BenchRow* row : fastest_rows(report)) {
    const auto tokens = static_cast<double>(row->shape.num_tokens);
    ours.points.push_back(
        {tokens, 100 * row->of_floor(),
         fmt::format("floor {}, measured {}", time_text(row->floor_us), time_text(row->p50_us))});
    if (!row->baseline) continue;
    peers.points.push_back(
        {tokens, 100 * row->floor_us / row->baseline->us,
         fmt::format("{}: {}", row->baseline->name, time_text(row->baseline->us))});
  }
  const std::string chart =
      percent_chart({"share of the floor", "tokens of each rank", "floor / time"}, ours, peers);
  if (chart.empty()) return {};
  return fmt::format(
      "<section><h2>Share of the floor</h2><p>Least time that the measured constants allow, over "
      "the time taken; 100 % is the limit.{}</p>{}</section>\n",
      peers.points.empty() ? "" : " Dots: the fastest baseline.", chart);
}

std::string budget_section(const BenchReport& report) {
  std::map<std::int64_t, ChartSeries> lines;
  for (const BenchRow& row : report.rows) {
    if (row.shape.num_sms == 0 || !row.left_out.empty()) continue;
    ChartSeries& line = lines[row.shape.num_tokens];
    line.points.push_back(
        {static_cast<double>(row.shape.num_sms), row.p50_us,
         fmt::format("{} SMs, {}", row.shape.num_sms, label_of(row.shape.num_tokens, row.p50_us))});
  }
  std::vector<ChartSeries> series;
  for (auto& [tokens, line] : lines) {
    if (line.points.size() < 2) continue;
    std::sort(line.points.begin(), line.points.end(),
              [](const ChartPoint& a, const ChartPoint& b) { return a.x < b.x; });
    line.name = fmt::format("{} token{}", tokens, tokens == 1 ? "" : "s");
    line.color = kColors[series.size() % kColors.size()];
    series.push_back(line);
  }
  const std::string chart =
      line_chart({"time against SMs", "SMs of an operation", "microseconds, median"}, series);
  if (chart.empty()) return {};
  return "<section><h2>Time against SMs</h2><p>How much of the GPU a given speed costs.</p>" +
         chart + "</section>\n";
}

// What each way over the wire reached with each grid of all budgets.
std::string wire_section(const BenchReport& report) {
  std::map<std::string, std::map<int, double>> rates;
  std::vector<std::string> order;
  for (const BudgetFloor& floor : report.floors) {
    for (const measure::WireRate& one : floor.model.wire) {
      if (rates.count(one.by) == 0) order.push_back(one.by);
      rates[one.by][one.num_ctas] = one.gb_per_second;
    }
  }
  std::vector<ChartSeries> series;
  for (const std::string& by : order) {
    ChartSeries line{by, kColors[series.size() % kColors.size()], false, false, {}};
    for (const auto& [num_ctas, rate] : rates[by]) {
      line.points.push_back({static_cast<double>(num_ctas), rate,
                             fmt::format("{} of {} CTAs: {:.0f} GB/s", by, num_ctas, rate)});
    }
    series.push_back(std::move(line));
  }
  const std::string chart =
      line_chart({"the wire", "CTAs that only carry bytes", "GB/s that leave a GPU"}, series);
  if (chart.empty()) return {};
  return "<section><h2>The wire</h2><p>All GPUs to all peers at once, 64 MiB each; the highest "
         "rate is that of the floor.</p>" +
         chart + "</section>\n";
}

// One picture per shape, with a colour per role.
std::string stages_section(const BenchReport& report) {
  std::string html;
  for (const BenchRow& row : report.rows) {
    std::vector<ChartRange> ranges;
    std::map<std::string, const char*> colors;
    for (const measure::StageTimes& one : row.stages) {
      const char*& color = colors[one.role];
      if (color == nullptr) color = kColors[(colors.size() - 1) % kColors.size()];
      ranges.push_back({fmt::format("{}, {}: {}", one.kernel, one.role, one.stage), color,
                        one.min_us, one.median_us, one.max_us});
    }
    const bool is_gpu = report.options.device == "cuda";
    const char* const axis =
        is_gpu ? "microseconds after the first CTA of the kernel began" : "microseconds";
    const std::string chart = range_chart({"stages", axis, ""}, ranges);
    if (chart.empty()) continue;
    html += fmt::format(
        "<section><h2>Stages, {} tokens{}</h2><p>{}: median, {}, over all calls.</p>{}</section>\n",
        row.shape.num_tokens,
        row.shape.num_sms == 0 ? "" : fmt::format(", {} SMs", row.shape.num_sms),
        is_gpu ? "When the CTAs of rank 0 reached which point" : "How long rank 0 was at it",
        is_gpu ? "first and last" : "shortest and longest", chart);
  }
  return html;
}

bool has_baselines(const BenchReport& report) {
  return std::any_of(report.rows.begin(), report.rows.end(),
                     [](const BenchRow& row) { return row.baseline.has_value(); });
}

// Columns of calls that were timed one by one, and of what crosses between GPUs of several hosts.
std::vector<const char*> other_names(const BenchReport& report) {
  std::vector<const char*> names;
  if (report.options.cold_code || report.options.skew) names.push_back("apart");
  if (report.options.cold_code) names.push_back("cold code");
  if (report.options.skew) names.push_back("skewed");
  if (report.has_host_calls()) {
    names.insert(names.end(), {"dispatch bytes to hosts", "combine bytes to hosts", "hosts"});
  }
  return names;
}

std::vector<std::string> other_texts(const BenchReport& report, const BenchRow& row) {
  std::vector<std::string> texts;
  const BenchOptions& options = report.options;
  if (options.cold_code || options.skew) texts.push_back(time_text(row.apart_us));
  if (options.cold_code) texts.push_back(time_text(row.cold_us));
  if (options.skew) texts.push_back(time_text(row.skewed_us));
  if (report.has_host_calls()) {
    texts.push_back(std::to_string(row.host_dispatch.value_or(HostCall()).bytes));
    texts.push_back(std::to_string(row.host_combine.value_or(HostCall()).bytes));
    texts.push_back(time_text(row.host_us));
  }
  return texts;
}

std::string table_row(const BenchReport& report, const BenchRow& row) {
  std::string html = "<tr>";
  if (report.has_budgets()) html += fmt::format("<td>{}</td>", row.shape.num_sms);
  html += fmt::format("<td>{}</td>", row.shape.num_tokens);
  if (!row.left_out.empty()) {
    return html + fmt::format("<td class=\"text\" colspan=\"{}\">left out: {}</td></tr>\n",
                              (has_baselines(report) ? 8 : 7) + other_names(report).size(),
                              escaped(row.left_out));
  }
  html += fmt::format(
      "<td>{}</td><td>{}</td><td>{:.2f}</td><td>{}</td><td>{:.0f} %</td><td{}>{}</td><td>{}</td>",
      time_text(row.p50_us), time_text(row.p99_us), row.wire_gb_per_second(),
      time_text(row.floor_us), 100 * row.of_floor(), row.num_wrong == 0 ? "" : " class=\"bad\"",
      row.num_wrong, escaped(row.method));
  for (const std::string& text : other_texts(report, row)) html += fmt::format("<td>{}</td>", text);
  if (!has_baselines(report)) return html + "</tr>\n";
  html += row.baseline
              ? fmt::format("<td class=\"text\">{} {} ({:.2f}x)</td>", escaped(row.baseline->name),
                            time_text(row.baseline->us), row.baseline->us / row.p50_us)
              : std::string("<td class=\"text\"></td>");
  return html + "</tr>\n";
}

std::string table_section(const BenchReport& report) {
  std::string html = "<section><h2>All lines</h2><table><thead><tr>";
  if (report.has_budgets()) html += "<th>SMs</th>";
  for (const char* name :
       {"tokens", "p50", "p99", "wire GB/s", "floor", "of floor", "wrong", "method"}) {
    html += fmt::format("<th>{}</th>", name);
  }
  for (const char* name : other_names(report)) html += fmt::format("<th>{}</th>", name);
  if (has_baselines(report)) html += "<th class=\"text\">baseline</th>";
  html += "</tr></thead><tbody>\n";
  for (const BenchRow& row : report.rows) html += table_row(report, row);
  html +=
      "</tbody></table><p>Times in microseconds. p99 is the maximum below 100 iterations. Method ";
  return html +
         "<b>calls</b>: blocking calls, from a barrier to their return; <b>graph</b>, "
         "<b>events</b>, <b>launched</b>: CUDA graphs or events.</p></section>\n";
}

std::string machine_section(const BenchReport& report) {
  std::string html = "<section><h2>Where and how</h2><dl>\n";
  for (const auto& [name, value] : report.machine) html += entry(name, value);
  html += entry("library", build_summary());
  html += entry("routing", report.options.routing);
  for (const BudgetFloor& floor : report.floors) {
    html += entry(floor.num_sms == 0 ? "floor" : fmt::format("floor, {} SMs", floor.num_sms),
                  floor_text(floor.model));
  }
  if (report.baseline) {
    html += entry("baseline", report.baseline->source);
    html += entry("its machine", report.baseline->machine);
  }
  return html + "</dl></section>\n";
}

}  // namespace

std::string to_html(const BenchReport& report) {
  const BenchOptions& options = report.options;
  const std::string title = fmt::format("{} on {} ranks", report.workload.name, report.num_ranks);
  std::string html = page_start("switchyard bench: " + title);
  html += fmt::format(
      "<h1>{}</h1>\n<p>switchyard {} bench, {}. Hidden {}, {} experts, top-{}; {} on {}, {}, {}, "
      "{}{}{}{}{}{}{}{}.</p>\n",
      escaped(title), version(), escaped(report.date), report.workload.hidden,
      report.workload.num_experts, report.workload.num_topk, escaped(options.op),
      escaped(report.engine), escaped(options.layout), escaped(formats_text(options)),
      escaped(options.reduce),
      options.layers == 1 ? "" : fmt::format(", {} layers", options.layers),
      options.experts == "exact" ? "" : fmt::format(", {} experts", options.experts),
      options.micro_batches == 1 ? "" : fmt::format(", {} micro-batches", options.micro_batches),
      options.shared_experts == 0 ? "" : fmt::format(", {} shared experts", options.shared_experts),
      options.pdl ? "" : ", no programmatic launches",
      options.max_tokens == 0 ? "" : fmt::format(", room for {} tokens", options.max_tokens),
      options.skew ? ", also with ranks late by a random 0 to 50 us" : "");
  if (!report.is_ok()) html += "<p class=\"bad\">Some elements were wrong: see the table.</p>\n";
  return html + latency_section(report) + fraction_section(report) + budget_section(report) +
         wire_section(report) + stages_section(report) + table_section(report) +
         machine_section(report) + page_end();
}

}  // namespace switchyard::cli
