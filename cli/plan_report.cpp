// SPDX-License-Identifier: Apache-2.0

#include "plan_report.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "switchyard/version.h"

namespace switchyard::cli {
namespace {

using forecast::Choice;
using forecast::Forecast;
using forecast::LinkBytes;
using nlohmann::ordered_json;

std::string us_text(double us) {
  return us < 1000 ? fmt::format("{:.1f}", us) : fmt::format("{:.0f}", us);
}

std::string gb_text(std::size_t bytes) {
  return fmt::format("{:.3g}", static_cast<double>(bytes) * 1e-9);
}

std::string heading(const PlanReport& report) {
  const forecast::Question& question = report.question;
  const measure::BenchShape& shape = question.shape;
  const forecast::Machine& machine = question.machine;
  std::string text = fmt::format(
      "workload {}: hidden {}, {} experts, top-{}; {} tokens per rank, {}; routing {}\n"
      "machine  {}; {} ranks per host{}; network {:.4g} GB/s per rank\n"
      "experts  {:.4g} TFLOP/s, weights of {} bits at {:.4g} GB/s; {} micro-batch{}\n",
      shape.workload.name, shape.workload.hidden, shape.workload.num_experts,
      shape.workload.num_topk, shape.num_tokens, report.options.scheme, shape.routing.text(),
      machine.title, question.ranks_per_host,
      shape.num_sms == 0 ? "" : fmt::format("; {} SMs for an operation", shape.num_sms),
      machine.network.gb_per_second, question.experts.tflops, question.experts.weight_bits,
      question.experts.weight_gb_per_second, question.shape.num_micro_batches,
      question.shape.num_micro_batches == 1 ? "" : "es");
  return text;
}

std::string growth_table(const PlanReport& report) {
  std::string text = fmt::format(
      "\nThe best choice; slowest rank, MB on the busiest link of a call inside a host and between "
      "hosts\n{:>6} {:>6} {:>7} {:>8} {:>8} {:>8} {:>11} {:>10} {:>10} {:>9} {:>8} {:>8} {:>8}  "
      "{}\n",
      "hosts", "ranks", "copies", "to ranks", "to hosts", "balance", "dispatch us", "combine us",
      "experts us", "layer us", "inside", "between", "GB", "choice");
  for (const Forecast& one : report.forecasts) {
    const Choice* best = best_of(one);
    text +=
        fmt::format("{:>6} {:>6} {:>7} {:>8.2f} {:>8.2f} {:>8.2f} ", one.num_hosts, one.num_ranks,
                    one.num_physical, one.ranks_per_token, one.crossings_per_token, one.balance);
    if (best == nullptr) {
      text += "no choice is possible\n";
      continue;
    }
    const double inside = std::max(one.dispatch.busiest_inside, one.combine.busiest_inside);
    const double across = std::max(one.dispatch.busiest_across, one.combine.busiest_across);
    text += fmt::format("{:>11} {:>10} {:>10} {:>9} {:>8.2f} {:>8.2f} {:>8}  {}\n",
                        us_text(best->time.dispatch.total_us), us_text(best->time.combine.total_us),
                        us_text(one.experts_us), us_text(best->layer_us), inside * 1e-6,
                        across * 1e-6, gb_text(best->memory.total()), name_of(*best));
  }
  return text;
}

std::string choices_table(const Forecast& one) {
  std::string text = fmt::format("\n{} ranks on {} host{}", one.num_ranks, one.num_hosts,
                                 one.num_hosts == 1 ? "" : "s");
  text += one.why.empty() ? "\n" : fmt::format(": {}\n", one.why);
  for (std::size_t i = 0; i < one.choices.size(); ++i) {
    const Choice& choice = one.choices[i];
    text += fmt::format("  {} {:<28} {:<9}", static_cast<int>(i) == one.best ? "*" : " ",
                        name_of(choice), choice.backend);
    if (!choice.memory.obstacle.empty()) {
      text += fmt::format(" {}\n", choice.memory.obstacle);
      continue;
    }
    text += choice.is_timed
                ? fmt::format(" {:>9} + {:>9} us", us_text(choice.time.dispatch.total_us),
                              us_text(choice.time.combine.total_us))
                : fmt::format(" {:>24}", "");
    text += fmt::format("  {:>8} GB, of it windows {}\n", gb_text(choice.memory.total()),
                        gb_text(choice.memory.window_bytes));
  }
  return text;
}

ordered_json time_json(const CallTime& time) {
  return {{"us", time.total_us},         {"bound", time.bound()},
          {"start_us", time.start_us},   {"rounds_us", time.rounds_us},
          {"sm_us", time.sm_us},         {"wire_us", time.wire_us},
          {"memory_us", time.memory_us}, {"network_us", time.network_us}};
}

ordered_json link_json(const LinkBytes& bytes) {
  return {{"inside_bytes", bytes.inside},
          {"between_bytes", bytes.across},
          {"busiest_inside_bytes", bytes.busiest_inside},
          {"busiest_between_bytes", bytes.busiest_across}};
}

ordered_json choice_json(const Choice& choice) {
  ordered_json json{{"layout", name_of(choice.layout)},
                    {"reduce", name_of(choice.reduce)},
                    {"backend", choice.backend}};
  if (!choice.memory.obstacle.empty()) {
    json["obstacle"] = choice.memory.obstacle;
    return json;
  }
  json["window_bytes"] = choice.memory.window_bytes;
  json["receive_bytes"] = choice.memory.receive_bytes;
  if (!choice.is_timed) return json;
  json["dispatch"] = time_json(choice.time.dispatch);
  json["combine"] = time_json(choice.time.combine);
  json["layer_us"] = choice.layer_us;
  return json;
}

ordered_json forecast_json(const Forecast& one) {
  ordered_json json{{"hosts", one.num_hosts},
                    {"ranks", one.num_ranks},
                    {"physical_experts", one.num_physical},
                    {"balance", one.balance},
                    {"ranks_per_token", one.ranks_per_token},
                    {"crossings_per_token", one.crossings_per_token},
                    {"experts_us", one.experts_us},
                    {"best", one.best < 0 ? ordered_json() : ordered_json(one.best)},
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

const Choice* best_of(const Forecast& forecast) {
  return forecast.best < 0 ? nullptr : &forecast.choices[static_cast<std::size_t>(forecast.best)];
}

std::string name_of(const Choice& choice) {
  return fmt::format("{}, {}", switchyard::name_of(choice.layout),
                     switchyard::name_of(choice.reduce));
}

std::string to_text(const PlanReport& report) {
  std::string text = heading(report) + growth_table(report);
  for (const Forecast& one : report.forecasts) text += choices_table(one);
  return text;
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
  json["settings"] = {{"tokens", shape.num_tokens},
                      {"scheme", report.options.scheme},
                      {"routing", shape.routing.text()},
                      {"ranks_per_host", question.ranks_per_host},
                      {"sms", shape.num_sms},
                      {"balanced", question.is_balanced},
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
  return json.dump(1) + "\n";
}

}  // namespace switchyard::cli
