// SPDX-License-Identifier: Apache-2.0
//
// The report of `run` as text.

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include "switchyard/version.h"

#include "machine.h"
#include "run_report.h"

namespace switchyard::cli {
namespace {

constexpr std::int64_t kBarWidth = 40;

// Characters that the terminal or file can show.
struct Glyphs {
  const char* full;
  std::array<const char*, 8> levels;
};

Glyphs glyphs() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    const std::string_view text(value);
    if (text.find("UTF-8") == text.npos && text.find("utf8") == text.npos) break;
    return {"█", {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"}};
  }
  return {"#", {".", ":", "-", "=", "+", "*", "%", "#"}};
}

// Lists GPUs of the same name once.
std::string device_line(const RunReport& report) {
  std::vector<std::string> names = report.gpus;
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return fmt::format("device   cuda: {}, heap {}{}{}\n", fmt::join(names, ", "), report.heap,
                     report.is_shared_gpu ? ", ranks share a GPU: times are meaningless" : "",
                     report.options.experts == "exact" ? "; the bits of --device cpu" : "");
}

std::string header(const RunReport& report) {
  const ModelConfig& config = report.config;
  std::string text = fmt::format("switchyard {} on {}\n", version(), processor_text());
  text += fmt::format(
      "model    {} ({}) layer {}: hidden {}, {} experts, top-{}, intermediate {}{}\n",
      report.options.model, config.family->name, report.layer, config.hidden, config.num_experts(),
      config.num_topk(), config.moe_intermediate,
      config.shared_intermediate > 0 ? fmt::format(", shared {}", config.shared_intermediate) : "");
  const int parts = report.options.micro_batches;
  text +=
      fmt::format("input    {}: {} tokens{}, routing {}\n", report.input_source, report.num_tokens,
                  parts == 1 ? "" : fmt::format(" in {} micro-batches per rank", parts),
                  report.has_routing ? "from the file" : "by the router");
  text += fmt::format("engine   {}, {} rank{}\n", report.engine, report.num_ranks,
                      report.num_ranks == 1 ? "" : "s");
  if (report.is_on_gpus()) text += device_line(report);
  const std::string scale =
      report.tensor_scale ? fmt::format(", scale {:g}", *report.tensor_scale) : "";
  text += fmt::format("layer    prepare {}, scheme {}{}, reduce {}, experts {}, {} run{}\n",
                      report.options.prepare, report.options.scheme, scale, report.reduce,
                      report.options.experts, report.options.repeat,
                      report.options.repeat == 1 ? "" : "s");
  text += report.options.prepare == "local"
              ? "wire     nothing travels\n"
              : fmt::format("wire     rows as {}{}\n",
                            report.wire_scheme == "none" ? "bf16" : report.wire_scheme,
                            report.is_on_gpus()
                                ? " from GPU to GPU"
                                : ", " + bytes_text(report.wire_bytes()) + " from rank to rank");
  text += fmt::format("memory   {} of windows and {} of workspace per rank\n\n",
                      bytes_text(report.window_bytes), bytes_text(report.workspace_bytes));
  return text;
}

std::string stage_table(const RunReport& report) {
  std::string text = fmt::format("{:<20}{:>12}{:>12}{:>12}{:>14}\n", "stage, us over ranks", "min",
                                 "median", "max", "wire bytes");
  for (const StageReport& stage : report.stages) {
    text += fmt::format("{:<20}{:>12.1f}{:>12.1f}{:>12.1f}{:>14}\n", stage.name, stage.us.min,
                        stage.us.median, stage.us.max,
                        report.is_on_gpus() ? std::string("-") : std::to_string(stage.wire_bytes));
  }
  return text + "\n";
}

std::string rank_bars(const RunReport& report, const Glyphs& glyphs) {
  const std::int64_t most = std::max<std::int64_t>(
      1, *std::max_element(report.rows_per_rank.begin(), report.rows_per_rank.end()));
  std::string text = "rows received by each rank's experts\n";
  for (std::size_t r = 0; r < report.rows_per_rank.size(); ++r) {
    const std::int64_t rows = report.rows_per_rank[r];
    text += fmt::format("rank {:>3}  {:>8}  ", r, rows);
    for (std::int64_t i = 0; i < (kBarWidth * rows + most / 2) / most; ++i) text += glyphs.full;
    text += "\n";
  }
  return text + "\n";
}

std::string expert_histogram(const RunReport& report, const Glyphs& glyphs) {
  constexpr std::size_t kExpertsPerLine = 64;
  const std::vector<std::int64_t>& rows = report.rows_per_expert;
  std::int64_t sum = 0;
  for (const std::int64_t count : rows) sum += count;
  const auto [least, most] = std::minmax_element(rows.begin(), rows.end());
  const double mean = static_cast<double>(sum) / static_cast<double>(rows.size());
  std::string text = fmt::format("expert load: {} rows, {} to {} per expert, mean {:.1f}", sum,
                                 *least, *most, mean);
  if (sum > 0) text += fmt::format(", busiest {:.2f}x the mean", static_cast<double>(*most) / mean);
  text += "\n";
  for (std::size_t e = 0; e < rows.size(); ++e) {
    if (e % kExpertsPerLine == 0) text += fmt::format("{}{:>5}  ", e == 0 ? "" : "\n", e);
    const std::int64_t top = std::max<std::int64_t>(1, *most);
    const std::int64_t level = rows[e] == 0 ? 0 : 1 + (rows[e] * 7 - 1) / top;
    text += rows[e] == 0
                ? " "
                : glyphs.levels[static_cast<std::size_t>(std::min<std::int64_t>(7, level))];
  }
  return text + "\n\n";
}

std::string placement_text(const RunReport& report) {
  std::string text;
  if (report.balance) text += to_text(*report.balance);
  if (report.num_hosts > 1 && report.num_tokens > 0) {
    const RouterConfig& router = report.config.router;
    text += fmt::format(
        "hosts: {:.2f} rows per token cross between {} hosts{}\n",
        static_cast<double>(report.host_crossings) / static_cast<double>(report.num_tokens),
        report.num_hosts,
        router.num_groups == 1 ? ""
                               : fmt::format("; the router chooses {} of {} groups of experts",
                                             router.topk_groups, router.num_groups));
  }
  return text.empty() ? text : text + "\n";
}

std::string notes(const RunReport& report) {
  std::string text;
  if (report.num_bad_weights > 0) {
    text += fmt::format("note: {} topk_weights of the input are NaN or infinite\n",
                        report.num_bad_weights);
  }
  if (report.rounds_input) {
    text +=
        "note: hidden_states is f32 and was rounded to bf16; --scheme none on CPUs keeps it f32\n";
  }
  return text;
}

// What was compared with the reference implementation, which quantizes as the run does.
std::string check_line(const RunReport& report) {
  const OracleReport& oracle = report.oracle;
  if (report.num_tokens == 0) return {};
  if (!oracle.is_ok()) {
    return fmt::format("check: differs from the reference implementation: {}: WRONG\n",
                       oracle.difference);
  }
  std::string text = "check: ";
  text += oracle.compared_rows == oracle.num_rows
              ? fmt::format("{} received rows", oracle.num_rows)
              : fmt::format("places of {} received rows, bytes of {}", oracle.num_rows,
                            oracle.compared_rows);
  text += oracle.left_out.empty() ? " and " : "";
  if (oracle.left_out.empty()) {
    text += fmt::format("{} of {} results", oracle.compared_tokens, report.num_tokens);
  }
  const bool is_exact = oracle.bound == 0;
  text += is_exact ? " equal the reference implementation in every bit"
                   : fmt::format(" agree with the reference implementation, results to {:.1e}",
                                 oracle.rel_l2);
  if (!oracle.left_out.empty()) text += fmt::format(" (no results: {})", oracle.left_out);
  return text + ": ok\n";
}

std::string accuracy(const RunReport& report) {
  if (report.num_tokens == 0) return "accuracy: no tokens, nothing to compare\n";
  if (!report.other_layer.empty()) {
    return fmt::format("accuracy: not compared, layer {} ran, but the reference output of {} {}\n",
                       report.layer, report.reference_source, report.other_layer);
  }
  if (!report.rel_l2) return "accuracy: the input has no reference output\n";
  const std::string verdict = !report.is_judged()
                                  ? " (for information: ref is not quantized)"
                                  : fmt::format(", bound {:.1e}: {}", report.bound(),
                                                *report.rel_l2 <= report.bound() ? "ok" : "WRONG");
  return fmt::format("accuracy: ||out - ref|| / ||ref|| = {:.3e}, max |out - ref| = {:.3e}{}\n",
                     *report.rel_l2, *report.max_abs, verdict);
}

}  // namespace

std::string to_text(const RunReport& report) {
  const Glyphs shown = glyphs();
  return header(report) + stage_table(report) + rank_bars(report, shown) +
         expert_histogram(report, shown) + placement_text(report) + notes(report) +
         check_line(report) + accuracy(report);
}

}  // namespace switchyard::cli
