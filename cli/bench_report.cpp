// SPDX-License-Identifier: Apache-2.0

#include "bench_report.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "switchyard/version.h"

#include "core/commit.h"

namespace switchyard::cli {
namespace {

using measure::Operation;

std::string cell_time(double us) {
  return us < 1000 ? fmt::format("{:.1f}", us) : fmt::format("{:.0f}", us);
}

// Formats a ratio of two times: below 0.1 one significant digit, so that it never reads 0.00.
std::string ratio_text(double ratio) {
  return ratio < 0.1 ? fmt::format("{:.1g}x", ratio) : fmt::format("{:.2f}x", ratio);
}

std::string operation_text(const BenchOptions& options) {
  std::string what =
      options.layers == 1 ? options.op : fmt::format("{} {}s in a row", options.layers, options.op);
  if (options.experts != "exact") what += fmt::format(", {} experts", options.experts);
  if (options.micro_batches > 1) what += fmt::format(", {} micro-batches", options.micro_batches);
  if (options.shared_experts > 0) {
    what += fmt::format(", {} shared experts", options.shared_experts);
  }
  if (!options.pdl) what += ", no programmatic launches";
  if (options.cold_code) what += ", also after 320 KiB of other code and 64 MiB of traffic";
  if (options.skew) {
    what += fmt::format(", also with ranks late by a random 0 to 50 us (seed {})", options.seed);
  }
  if (options.exact_messages) what += ", messages of exact size";
  if (options.host_capacity > 0) {
    what += fmt::format(", messages of {} tokens", options.host_capacity);
  }
  if (options.max_tokens > 0) what += fmt::format(", room for {} tokens", options.max_tokens);
  if (options.graph) {
    return fmt::format(
        "{}: median of {} graphs, mean iteration of each, slowest rank; inputs in turn, cold "
        "caches before each graph",
        what, options.runs);
  }
  return fmt::format(
      "{}: median of {} iterations, slowest rank of each, new routing and poisoned outputs each",
      what, options.runs);
}

// For example "wire 359 GB/s by bulk copies of 264 CTAs (16-byte stores 357 of 132)".
std::string wire_text(const std::vector<measure::WireRate>& wire) {
  const measure::WireRate* best = best_of(wire);
  if (best == nullptr) return {};
  std::string others;
  for (const measure::WireRate& one : best_of_each(wire)) {
    if (one.by == best->by) continue;
    others += fmt::format("{}{} {:.3g} of {}", others.empty() ? "" : ", ", one.by,
                          one.gb_per_second, one.num_ctas);
  }
  return fmt::format("wire {:.3g} GB/s by {} of {} CTAs{}", best->gb_per_second, best->by,
                     best->num_ctas, others.empty() ? "" : " (" + others + ")");
}

bool has_baseline(const BenchReport& report) {
  return report.baseline.has_value() || report.options.baseline == "nccl";
}

bool has_any_baseline(const BenchReport& report) {
  return std::any_of(report.rows.begin(), report.rows.end(),
                     [](const BenchRow& row) { return row.baseline.has_value(); });
}

nlohmann::ordered_json json_of(const measure::WireRate& rate) {
  return {{"by", rate.by}, {"ctas", rate.num_ctas}, {"gb_per_second", rate.gb_per_second}};
}

nlohmann::ordered_json json_of(const BudgetFloor& floor) {
  nlohmann::ordered_json json;
  json["sms"] = floor.num_sms;
  json["bytes"] = floor.model.bytes == measure::FloorBytes::kCopied ? "copied" : "wire";
  json["start_us"] = floor.model.start_us;
  json["saved_us"] = floor.model.saved_us;
  json["rate"] = nlohmann::ordered_json::array();
  for (const measure::RatePoint& point : floor.model.rate) {
    json["rate"].push_back({{"bytes", point.bytes}, {"gb_per_second", point.gb_per_second}});
  }
  json["wire"] = nullptr;
  if (const measure::WireRate* best = best_of(floor.model.wire)) {
    json["wire"] = json_of(*best);
    json["wire"]["tried"] = nlohmann::ordered_json::array();
    for (const measure::WireRate& one : floor.model.wire) {
      json["wire"]["tried"].push_back(json_of(one));
    }
  }
  json["constants"] = nlohmann::ordered_json::array();
  for (const measure::Constant& constant : floor.model.constants) {
    json["constants"].push_back(
        {{"name", constant.name}, {"value", constant.value}, {"unit", constant.unit}});
  }
  return json;
}

nlohmann::ordered_json json_of(const std::vector<measure::StageTimes>& stages) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const measure::StageTimes& one : stages) {
    json.push_back({{"kernel", one.kernel},
                    {"role", one.role},
                    {"stage", one.stage},
                    {"min_us", one.min_us},
                    {"median_us", one.median_us},
                    {"max_us", one.max_us},
                    {"count", one.count}});
    if (one.floor_us > 0) json.back()["floor_us"] = one.floor_us;
  }
  return json;
}

nlohmann::ordered_json json_of(const HostCall& call) {
  return {{"bytes_per_token", call.bytes_per_token}, {"bytes", call.bytes}};
}

nlohmann::ordered_json json_of(const BenchReport& report, const BenchRow& row) {
  nlohmann::ordered_json json;
  json["tokens"] = row.shape.num_tokens;
  json["sms"] = row.shape.num_sms;
  if (!row.left_out.empty()) {
    json["left_out"] = row.left_out;
    return json;
  }
  json["p50_us"] = row.p50_us;
  json["p99_us"] = row.p99_us;
  json["min_us"] = row.min_us;
  json["wire_bytes"] = row.wire_bytes;
  json["wire_gb_per_second"] = row.wire_gb_per_second();
  json["floor_us"] = row.floor_us;
  if (report.has_host_calls()) json["inside_us"] = row.inside_us;
  json["of_floor"] = row.of_floor();
  if (row.apart_us > 0) json["apart_us"] = row.apart_us;
  if (row.cold_us > 0) json["cold_us"] = row.cold_us;
  if (row.skewed_us > 0) json["skewed_us"] = row.skewed_us;
  if (!row.stages.empty()) json["stages"] = json_of(row.stages);
  json["wrong"] = row.num_wrong;
  json["method"] = row.method;
  if (row.balance) json["balance"] = to_json(*row.balance);
  if (report.num_hosts > 1) json["host_crossings_per_token"] = row.host_crossings;
  if (report.has_several_hosts) json["host_bytes_per_token"] = row.host_bytes;
  if (row.host_dispatch) json["host_dispatch"] = json_of(*row.host_dispatch);
  if (row.host_combine) json["host_combine"] = json_of(*row.host_combine);
  if (report.has_host_calls()) json["host_us"] = row.host_us;
  json["baseline"] = nullptr;
  if (row.baseline) {
    json["baseline"] = {{"name", row.baseline->name},
                        {"mode", row.baseline->mode},
                        {"us", row.baseline->us},
                        {"ratio", row.baseline->us / row.p50_us}};
  }
  return json;
}

nlohmann::ordered_json settings_of(const BenchOptions& options) {
  return {{"op", options.op},
          {"layout", options.layout},
          {"scheme", options.scheme},
          {"scales", options.scales},
          {"returned", options.returned},
          {"codes", options.codes},
          {"reduce", options.reduce},
          {"experts", options.experts},
          {"micro_batches", options.micro_batches},
          {"shared_experts", options.shared_experts},
          {"layers", options.layers},
          {"graph", options.graph},
          {"pdl", options.device == "cuda" && options.pdl},
          {"cold_code", options.cold_code},
          {"skew", options.skew},
          {"routing", options.routing},
          {"runs", options.runs},
          {"seed", options.seed},
          {"max_tokens", options.max_tokens},
          {"exact_messages", options.exact_messages},
          {"host_capacity", options.host_capacity}};
}

}  // namespace

bool BenchReport::is_empty() const {
  return std::all_of(rows.begin(), rows.end(),
                     [](const BenchRow& row) { return !row.left_out.empty(); });
}

bool BenchReport::is_ok() const {
  return !is_empty() && std::all_of(rows.begin(), rows.end(),
                                    [](const BenchRow& row) { return row.num_wrong == 0; });
}

bool BenchReport::has_budgets() const { return !options.sms.empty(); }

std::string floor_text(const measure::FloorModel& floor) {
  std::string text = wire_text(floor.wire);
  for (const measure::Constant& constant : floor.constants) {
    const std::string value = constant.value < 1000 ? fmt::format("{:.3g}", constant.value)
                                                    : fmt::format("{:.0f}", constant.value);
    text +=
        fmt::format("{}{} {} {}", text.empty() ? "" : ", ", constant.name, value, constant.unit);
  }
  return text;
}

std::string formats_text(const BenchOptions& options) {
  std::string text = options.scheme == "none" ? "bf16" : options.scheme;
  if (options.scales != "row_major") text += fmt::format(" with {} scales", options.scales);
  if (options.codes) text += " given as codes";
  if (options.returned != "none") text += fmt::format(", {} returned", options.returned);
  return text;
}

std::string header_text(const BenchReport& report) {
  const BenchOptions& options = report.options;
  std::string text = fmt::format("switchyard {} on {}\n", version(),
                                 report.machine.empty() ? "" : report.machine.front().second);
  for (std::size_t i = 1; i < report.machine.size(); ++i) {
    text += fmt::format("{:<8} {}\n", report.machine[i].first, report.machine[i].second);
  }
  text += fmt::format("workload {}: hidden {}, {} experts, top-{}; routing {}\n",
                      report.workload.name, report.workload.hidden, report.workload.num_experts,
                      report.workload.num_topk, options.routing);
  text += fmt::format("exchange {}{} on {} ranks{}, {}, {}, {}\n",
                      options.device == "cuda" ? "cuda/" : "", report.engine, report.num_ranks,
                      report.has_several_hosts ? fmt::format(" of {} hosts", report.num_hosts) : "",
                      options.layout, formats_text(options), options.reduce);
  text += fmt::format("timing   {}\n", operation_text(options));
  for (const BudgetFloor& floor : report.floors) {
    text += fmt::format("floor    {}{}{}\n",
                        floor.num_sms == 0 ? "" : fmt::format("{} SMs: ", floor.num_sms),
                        report.has_host_calls() ? "inside a host: " : "", floor_text(floor.model));
  }
  if (report.baseline) {
    text += fmt::format("baseline {}; on {}\n", report.baseline->source, report.baseline->machine);
  }
  text += "\n";
  if (report.has_budgets()) text += fmt::format("{:>4}", "SMs");
  text += fmt::format("{:>8}{:>12}{:>12}{:>11}{:>12}{:>10}{:>7}  {:<7}", "tokens", "p50 us",
                      "p99 us", "wire GB/s", "floor us", "of floor", "wrong", "method");
  if (report.num_hosts > 1) text += fmt::format("{:>12}", "rows/token");
  if (report.has_several_hosts) text += fmt::format("{:>13}", "bytes/token");
  if (report.has_host_calls()) {
    text += fmt::format("{:>15}{:>14}{:>11}", "dispatch bytes", "combine bytes", "hosts us");
  }
  if (options.cold_code || options.skew) text += fmt::format("{:>10}", "apart us");
  if (options.cold_code) text += fmt::format("{:>10}", "cold us");
  if (options.skew) text += fmt::format("{:>11}", "skewed us");
  if (has_baseline(report)) text += fmt::format("{:>13}{:>8}", "baseline us", "ratio");
  return text + "\n";
}

std::string row_text(const BenchReport& report, const BenchRow& row) {
  std::string text;
  if (report.has_budgets()) text += fmt::format("{:>4}", row.shape.num_sms);
  text += fmt::format("{:>8}", row.shape.num_tokens);
  if (!row.left_out.empty()) return text + "  left out: " + row.left_out + "\n";
  text += fmt::format("{:>12}{:>12}{:>11.2f}{:>12}{:>8.0f} %{:>7}  {:<7}", cell_time(row.p50_us),
                      cell_time(row.p99_us), row.wire_gb_per_second(), cell_time(row.floor_us),
                      100 * row.of_floor(), row.num_wrong, row.method);
  const BenchOptions& options = report.options;
  if (report.num_hosts > 1) text += fmt::format("{:>12.2f}", row.host_crossings);
  if (report.has_several_hosts) text += fmt::format("{:>13.0f}", row.host_bytes);
  if (report.has_host_calls()) {
    text += fmt::format("{:>15}{:>14}{:>11}", row.host_dispatch.value_or(HostCall()).bytes,
                        row.host_combine.value_or(HostCall()).bytes, cell_time(row.host_us));
  }
  if (options.cold_code || options.skew) text += fmt::format("{:>10}", cell_time(row.apart_us));
  if (options.cold_code) text += fmt::format("{:>10}", cell_time(row.cold_us));
  if (options.skew) text += fmt::format("{:>11}", cell_time(row.skewed_us));
  if (row.baseline) {
    text += fmt::format("{:>13}{:>8}  {}", cell_time(row.baseline->us),
                        ratio_text(row.baseline->us / row.p50_us), row.baseline->name);
  }
  return text + "\n";
}

// On CPUs: how long each took, and a copy of what it must write.
std::string phases_text(const BenchRow& row) {
  std::string text = fmt::format("\n  stages of rank 0, {} tokens, us\n", row.shape.num_tokens);
  text += fmt::format("  {:<10}{:<10}{:>11}{:>11}{:>11}{:>13}{:>10}\n", "call", "stage", "min",
                      "median", "max", "copy floor", "of floor");
  for (const measure::StageTimes& one : row.stages) {
    text += fmt::format("  {:<10}{:<10}{:>11.1f}{:>11.1f}{:>11.1f}", one.kernel, one.stage,
                        one.min_us, one.median_us, one.max_us);
    if (one.floor_us > 0 && one.median_us > 0) {
      text += fmt::format("{:>13.1f}{:>8.0f} %", one.floor_us, 100 * one.floor_us / one.median_us);
    }
    text += "\n";
  }
  return text + "\n";
}

bool is_of_phases(const measure::StageTimes& one) { return one.role == "rank"; }

std::string stages_text(const BenchRow& row) {
  if (row.stages.empty()) return {};
  if (is_of_phases(row.stages.front())) return phases_text(row);
  std::string text =
      fmt::format("\n  stages of rank 0, {} tokens, us after the first CTA of the kernel began\n",
                  row.shape.num_tokens);
  text += fmt::format("  {:<10}{:<10}{:<20}{:>9}{:>9}{:>9}{:>9}\n", "kernel", "CTAs", "stage",
                      "min", "median", "max", "count");
  for (const measure::StageTimes& one : row.stages) {
    text += fmt::format("  {:<10}{:<10}{:<20}{:>9.2f}{:>9.2f}{:>9.2f}{:>9}\n", one.kernel, one.role,
                        one.stage, one.min_us, one.median_us, one.max_us, one.count);
  }
  return text + "\n";
}

// Of the last row measured, whose load is the largest as a rule.
std::string balance_text(const BenchReport& report) {
  std::string text;
  for (const BenchRow& row : report.rows) {
    if (row.balance) text = "\n" + to_text(*row.balance);
  }
  return text;
}

std::string footer_text(const BenchReport& report) {
  std::string text;
  const bool compares = report.baseline && !report.rows.empty();
  if (compares && !is_comparable(*report.baseline, report.rows.front().shape)) {
    const Baseline& base = *report.baseline;
    text += fmt::format(
        "\nbaseline: its numbers are for hidden {}, {} experts, top-{}, {} ranks, must be those of "
        "this run to stand beside it\n",
        base.hidden, base.num_experts, base.num_topk, base.num_ranks);
  } else if (compares && !has_any_baseline(report)) {
    text += fmt::format("\nbaseline: it has no {} of these numbers of tokens\n", report.options.op);
  }
  if (report.options.baseline == "nccl" && !has_any_baseline(report)) {
    text += "\nbaseline: nccl was left out; a warning says why\n";
  }
  text += balance_text(report);
  if (report.is_empty()) {
    text += "\nnothing was measured: every line is left out; take fewer --tokens or more memory\n";
  } else if (!report.is_ok()) {
    text += "\nWRONG: elements differ from what they must be\n";
  }
  return text;
}

std::string to_json(const BenchReport& report) {
  nlohmann::ordered_json json;
  json["ok"] = report.is_ok();
  json["version"] = version();
  json["build"] = build_summary();
  json["commit"] = build_commit();
  json["date"] = report.date;
  json["device"] = report.options.device;
  json["engine"] = report.engine;
  json["ranks"] = report.num_ranks;
  json["machine"] = nlohmann::ordered_json::object();
  for (const auto& [name, value] : report.machine) json["machine"][name] = value;
  json["workload"] = {{"name", report.workload.name},
                      {"hidden", report.workload.hidden},
                      {"experts", report.workload.num_experts},
                      {"topk", report.workload.num_topk},
                      {"intermediate", report.workload.intermediate}};
  json["settings"] = settings_of(report.options);
  json["settings"]["hosts"] = report.num_hosts;
  json["floors"] = nlohmann::ordered_json::array();
  for (const BudgetFloor& floor : report.floors) json["floors"].push_back(json_of(floor));
  json["baseline"] = nullptr;
  if (report.baseline) {
    json["baseline"] = {{"machine", report.baseline->machine}, {"source", report.baseline->source}};
  }
  json["rows"] = nlohmann::ordered_json::array();
  for (const BenchRow& row : report.rows) json["rows"].push_back(json_of(report, row));
  return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace switchyard::cli
