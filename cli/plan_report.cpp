// SPDX-License-Identifier: Apache-2.0

#include "plan_report.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "switchyard/version.h"

#include "plan/push_layout.h"

namespace switchyard::cli {
namespace {

using forecast::CallBytes;
using forecast::Choice;
using forecast::Forecast;
using nlohmann::ordered_json;

std::string us_text(double us) {
  return us < 1000 ? fmt::format("{:.1f}", us) : fmt::format("{:.0f}", us);
}

std::string gb_text(std::size_t bytes) {
  return fmt::format("{:.3g}", static_cast<double>(bytes) * 1e-9);
}

std::string mb_text(double bytes) {
  const double mb = bytes * 1e-6;
  return mb < 100 ? fmt::format("{:.2f}", mb) : fmt::format("{:.0f}", mb);
}

std::string plural(int count, const char* word, const char* end) {
  return fmt::format("{} {}{}", count, word, count == 1 ? "" : end);
}

std::string placement_text(const forecast::Question& question) {
  const std::string copies = question.num_redundant < 0
                                 ? "as few copies as give every rank equally many experts"
                                 : fmt::format("{} redundant cop{}", question.num_redundant,
                                               question.num_redundant == 1 ? "y" : "ies");
  return fmt::format("{}; {}", copies,
                     question.is_balanced
                         ? "placed by balance_experts for the load of another iteration"
                         : "in order");
}

std::string heading(const PlanReport& report) {
  std::string text;
  for (const auto& [name, value] : settings_of(report)) {
    text += fmt::format("{:<10} {}\n", name, value);
  }
  return text;
}

std::string growth_table(const PlanReport& report) {
  std::string text = fmt::format(
      "\nThe best choice: us of the slowest rank; MB on the busiest link of a call, inside a host "
      "and "
      "between hosts\n{:>6} {:>6} {:>8} {:>8} {:>8} {:>8} {:>11} {:>10} {:>10} {:>9} {:>8} {:>8} "
      "{:>8}  "
      "{}\n",
      "hosts", "ranks", "physical", "to ranks", "to hosts", "balance", "dispatch us", "combine us",
      "experts us", "layer us", "inside", "between", "GB", "choice");
  for (const Forecast& one : report.forecasts) {
    text +=
        fmt::format("{:>6} {:>6} {:>8} {:>8.2f} {:>8.2f} {:>8.2f} ", one.num_hosts, one.num_ranks,
                    one.num_physical, one.ranks_per_token, one.crossings_per_token, one.balance);
    const Choice* shown = shown_of(one);
    if (shown == nullptr) {
      text += verdict_of(one) + "\n";
      continue;
    }
    const double inside = std::max(one.dispatch.busiest_inside, one.combine.busiest_inside);
    const double across = std::max(one.dispatch.busiest_across, one.combine.busiest_across);
    text += fmt::format(
        "{:>11} {:>10} {:>10} {:>9} {:>8.2f} {:>8.2f} {:>8}  {}\n",
        us_text(shown->time.dispatch.total_us), us_text(shown->time.combine.total_us),
        us_text(one.experts_us), us_text(shown->layer_us), inside * 1e-6, across * 1e-6,
        shown->memory.is_known() ? gb_text(shown->memory.total()) : "-", verdict_of(one));
  }
  return text;
}

// A plus: the best without the limit of ranks.
const char* mark_of(const Forecast& one, int index) {
  if (index == one.best) return "*";
  return index == one.best_without_limit ? "+" : " ";
}

std::string choices_table(const Forecast& one) {
  std::string text = fmt::format("\n{} on {}: {}\n", plural(one.num_ranks, "rank", "s"),
                                 plural(one.num_hosts, "host", "s"), one.why);
  for (const std::string& call : calls_of(one)) text += "  " + call + "\n";
  text += fmt::format("  {:<22} {:<9}{:>12}{:>12}{:>12}{:>12}{:>12}\n", "choice", "backend",
                      "dispatch us", "combine us", "layer us", "window GB", "all GB");
  for (std::size_t i = 0; i < one.choices.size(); ++i) {
    const Choice& choice = one.choices[i];
    const bool has_memory = choice.memory.is_known();
    const auto us = [&](double value) { return choice.is_timed ? us_text(value) : "-"; };
    const auto gb = [&](std::size_t bytes) { return has_memory ? gb_text(bytes) : "-"; };
    text += fmt::format(
        "{} {:<22} {:<9}{:>12}{:>12}{:>12}{:>12}{:>12}{}{}\n", mark_of(one, static_cast<int>(i)),
        name_of(choice), choice.backend, us(choice.time.dispatch.total_us),
        us(choice.time.combine.total_us), us(choice.layer_us), gb(choice.memory.window_bytes),
        gb(choice.memory.total()), choice.why_not.empty() ? "" : "  ", choice.why_not);
  }
  return text;
}

ordered_json time_json(const CallTime& time) {
  return {{"us", time.total_us},         {"bound", time.bound()},
          {"start_us", time.start_us},   {"rounds_us", time.rounds_us},
          {"sm_us", time.sm_us},         {"wire_us", time.wire_us},
          {"memory_us", time.memory_us}, {"network_us", time.network_us}};
}

ordered_json link_json(const CallBytes& bytes) {
  return {{"inside_bytes", bytes.inside},
          {"between_bytes", bytes.across},
          {"busiest_inside_bytes", bytes.busiest_inside},
          {"busiest_between_bytes", bytes.busiest_across}};
}

ordered_json choice_json(const Choice& choice) {
  ordered_json json{{"layout", name_of(choice.layout)},
                    {"reduce", name_of(choice.reduce)},
                    {"backend", choice.backend}};
  json["why_not"] = choice.why_not.empty() ? ordered_json() : ordered_json(choice.why_not);
  if (choice.memory.is_known()) {
    json["window_bytes"] = choice.memory.window_bytes;
    json["receive_bytes"] = choice.memory.receive_bytes;
  }
  if (!choice.is_timed) return json;
  json["dispatch"] = time_json(choice.time.dispatch);
  json["combine"] = time_json(choice.time.combine);
  json["layer_us"] = choice.layer_us;
  return json;
}

ordered_json index_json(int index) { return index < 0 ? ordered_json() : ordered_json(index); }

ordered_json forecast_json(const Forecast& one) {
  ordered_json json{{"hosts", one.num_hosts},
                    {"ranks", one.num_ranks},
                    {"physical_experts", one.num_physical},
                    {"balance", one.balance},
                    {"ranks_per_token", one.ranks_per_token},
                    {"crossings_per_token", one.crossings_per_token},
                    {"experts_us", one.experts_us},
                    {"best", index_json(one.best)},
                    {"best_without_limit", index_json(one.best_without_limit)},
                    {"shown", index_json(one.shown)},
                    {"why", one.why},
                    {"dispatch_path", one.dispatch_path},
                    {"combine_path", one.combine_path},
                    {"dispatch", link_json(one.dispatch)},
                    {"combine", link_json(one.combine)}};
  json["choices"] = ordered_json::array();
  for (const Choice& choice : one.choices) json["choices"].push_back(choice_json(choice));
  return json;
}

}  // namespace

const Choice* shown_of(const Forecast& forecast) {
  return forecast.shown < 0 ? nullptr : &forecast.choices[static_cast<std::size_t>(forecast.shown)];
}

std::string name_of(const Choice& choice) {
  return fmt::format("{}, {}", switchyard::name_of(choice.layout),
                     switchyard::name_of(choice.reduce));
}

std::vector<std::pair<std::string, std::string>> settings_of(const PlanReport& report) {
  const forecast::Question& question = report.question;
  const measure::BenchShape& shape = question.shape;
  const forecast::Machine& machine = question.machine;
  std::vector<std::pair<std::string, std::string>> settings{
      {"workload",
       fmt::format("{}: hidden {}, {} experts, top-{}; {} tokens per rank, {}; routing {}, seed {}",
                   shape.workload.name, shape.workload.hidden, shape.workload.num_experts,
                   shape.workload.num_topk, shape.num_tokens, report.options.scheme,
                   shape.routing.text(), shape.seed)},
      {"machine",
       fmt::format(
           "{}; {} per host{}; network {:.4g} GB/s per rank", machine.title,
           plural(question.ranks_per_host, "rank", "s"),
           shape.num_sms == 0 ? "" : fmt::format("; {} SMs for an operation", shape.num_sms),
           machine.network.gb_per_second)},
      {"experts",
       fmt::format("{:.4g} TFLOP/s, weights of {} bits at {:.4g} GB/s; {}", question.experts.tflops,
                   question.experts.weight_bits, question.experts.weight_gb_per_second,
                   plural(shape.num_micro_batches, "micro-batch", "es"))},
      {"placement", placement_text(question)}};
  if (question.max_memory_bytes > 0) {
    settings.emplace_back("memory", fmt::format("the exchange may take {:.4g} GB per rank",
                                                question.max_memory_bytes * 1e-9));
  }
  return settings;
}

std::string verdict_of(const Forecast& forecast) {
  const Choice* shown = shown_of(forecast);
  if (shown == nullptr) return forecast.why;
  if (forecast.best >= 0) return name_of(*shown);
  if (forecast.best_without_limit >= 0) {
    return fmt::format("none is possible; without the limit of {} ranks: {}", kMaxPushRanks,
                       name_of(*shown));
  }
  return fmt::format("none is possible; {}: {}", name_of(*shown), shown->why_not);
}

std::vector<std::string> calls_of(const Forecast& forecast) {
  const Choice* shown = shown_of(forecast);
  if (shown == nullptr) return {};
  const bool has_hosts = forecast.num_hosts > 1;
  const auto sentence = [&](const char* call, const char* path, const CallTime& time,
                            const CallBytes& bytes) {
    return fmt::format(
        "{} ({}) waits for {}; MB on the busiest link: {} inside a host{}; over all "
        "ranks: {}{}",
        call, path, time.bound(), mb_text(bytes.busiest_inside),
        has_hosts ? ", " + mb_text(bytes.busiest_across) + " between hosts" : "",
        mb_text(bytes.inside), has_hosts ? ", " + mb_text(bytes.across) : "");
  };
  return {sentence("dispatch", forecast.dispatch_path, shown->time.dispatch, forecast.dispatch),
          sentence("combine", forecast.combine_path, shown->time.combine, forecast.combine)};
}

const char* layouts_note() {
  return "Layouts compact and by_rank leave copies and sums to the experts, which are not counted, "
         "so they are never the best.";
}

std::string to_text(const PlanReport& report) {
  std::string text = heading(report) + growth_table(report);
  for (const Forecast& one : report.forecasts) text += choices_table(one);
  return text + "\n" + layouts_note() + "\n";
}

std::string to_json(const PlanReport& report) {
  const forecast::Question& question = report.question;
  const measure::BenchShape& shape = question.shape;
  ordered_json json;
  json["version"] = version();
  json["workload"] = {{"name", shape.workload.name},
                      {"hidden", shape.workload.hidden},
                      {"experts", shape.workload.num_experts},
                      {"topk", shape.workload.num_topk},
                      {"intermediate", shape.workload.intermediate}};
  json["settings"] = {
      {"tokens", shape.num_tokens},
      {"scheme", report.options.scheme},
      {"routing", shape.routing.text()},
      {"ranks_per_host", question.ranks_per_host},
      {"sms", shape.num_sms},
      {"redundant",
       question.num_redundant < 0 ? ordered_json() : ordered_json(question.num_redundant)},
      {"balanced", question.is_balanced},
      {"max_memory_bytes", question.max_memory_bytes},
      {"micro_batches", question.shape.num_micro_batches},
      {"tflops", question.experts.tflops},
      {"weight_bits", question.experts.weight_bits},
      {"weight_gb_per_second", question.experts.weight_gb_per_second},
      {"seed", shape.seed}};
  json["machine"] = {{"name", question.machine.name}, {"title", question.machine.title}};
  json["machine"]["constants"] = ordered_json::array();
  for (const forecast::Constant& one : question.machine.constants) {
    json["machine"]["constants"].push_back(
        {{"name", one.name}, {"value", one.value}, {"unit", one.unit}, {"source", one.source}});
  }
  json["forecasts"] = ordered_json::array();
  for (const Forecast& one : report.forecasts) json["forecasts"].push_back(forecast_json(one));
  return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace switchyard::cli
