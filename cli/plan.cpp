// SPDX-License-Identifier: Apache-2.0

#include "plan.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string_view>

#include <CLI/CLI.hpp>

#include "common_options.h"
#include "core/fail.h"
#include "help.h"
#include "io/output_file.h"
#include "plan/push_layout.h"
#include "plan_html.h"
#include "plan_measured.h"
#include "plan_report.h"
#include "quant/scheme.h"

namespace switchyard::cli {
namespace {

constexpr int kMaxPlannedRanks = 4096;
constexpr std::int64_t kMaxTokens = 1 << 20;
constexpr std::int64_t kMaxChoices = std::int64_t{1} << 27;  // drawn at once; 4 bytes each

/// A rate in GB/s or TFLOP/s; what no machine has is a slip of the unit.
void check_rate(const char* option, double value, double most) {
  require(std::isfinite(value) && value > 0 && value <= most, Errc::kInvalidArgument,
          "plan: {} is {}, must be above 0 and at most {}", option, value, most);
}

// CLI::Range lets NaN pass.
void check_memory(double gb) {
  constexpr double kMaxGb = 1e6;
  require(gb >= 0 && gb <= kMaxGb, Errc::kInvalidArgument,
          "plan: --memory is {}, must be from 0, which means any, to {}", gb, kMaxGb);
}

/// All else is said by the files. Errors: kInvalidArgument.
void check_beside_measured(const CLI::App& verb) {
  constexpr std::array<std::string_view, 8> kAllowed{
      "--measured", "--fixed-roles", "--constants", "--json",
      "--nvlink",   "--nic",         "--tflops",    "--memory-bandwidth"};
  for (const CLI::Option* option : verb.get_options()) {
    const std::string name = option->get_name();
    const bool is_allowed =
        option->count() == 0 || std::ranges::find(kAllowed, name) != kAllowed.end();
    require(is_allowed, Errc::kInvalidArgument,
            "plan: {} beside --measured, whose files say all but constants and rates; leave {} out",
            name, name);
  }
}

void check_sms(const PlanOptions& options, const forecast::Machine& machine) {
  if (options.sms == 0) return;
  require(machine.is_gpu, Errc::kInvalidArgument,
          "plan: --sms {} with constants of CPUs, must be constants of GPUs", options.sms);
  const int all = machine.push.num_sms;
  require(options.sms <= all, Errc::kInvalidArgument,
          "plan: --sms is {}, must be at most {}, as many as {} has", options.sms, all,
          machine.name);
  require(options.micro_batches == 1 || options.sms < all, Errc::kInvalidArgument,
          "plan: --sms {} of {} with --micro-batches {} leaves no SM for experts, must be at most "
          "{}; or leave --sms out",
          options.sms, all, options.micro_batches, all - 1);
}

void check_size(const PlanOptions& options, const std::vector<int>& hosts, std::int32_t num_topk) {
  const std::int64_t choices =
      std::int64_t{hosts.back()} * options.ranks_per_host * options.tokens * num_topk;
  require(choices <= kMaxChoices, Errc::kInvalidArgument,
          "plan: {} ranks with {} tokens of {} choices are {} choices, must be at most {}; give "
          "fewer --tokens or --hosts",
          hosts.back() * options.ranks_per_host, options.tokens, num_topk, choices, kMaxChoices);
}

std::vector<forecast::Forecast> run(const PlanOptions& options,
                                    const forecast::Question& question) {
  const std::vector<int> hosts = parse_hosts(options.hosts, options.ranks_per_host);
  check_size(options, hosts, question.shape.workload.num_topk);
  std::vector<forecast::Forecast> forecasts;
  for (const int num_hosts : hosts) {
    forecasts.push_back(forecast::forecast(question, num_hosts));
  }
  return forecasts;
}

void add_machine_options(CLI::App* verb, PlanOptions& options) {
  verb->add_option("--constants", options.constants,
                   "h200, h100, cpu, a file of constants, or of bench --json; default: h200, with "
                   "--measured the GPU or CPU that a file names");
  verb->add_option("--nvlink", options.nvlink,
                   "GB/s that leave a GPU inside a host; default: from the constants");
  verb->add_option("--nic", options.nic,
                   "GB/s of each rank between hosts; default: from the constants");
  verb->add_option("--tflops", options.tflops,
                   "TFLOP/s that the experts' GEMMs reach; default: from the constants");
  verb->add_option("--memory-bandwidth", options.memory_bandwidth,
                   "GB/s at which experts read weights; default: that of copies");
  verb->add_option("--weight-bits", options.weight_bits, "bits of an expert's weight")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  verb->add_option("--sms", options.sms,
                   "SMs that an operation may take; 0: all; with micro-batches, experts have the "
                   "others")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  verb->add_option("--memory", options.max_memory, "GB per rank that the exchange may take; 0: any")
      ->capture_default_str();
}

void add_other_options(CLI::App* verb, PlanOptions& options) {
  verb->add_option(
          "--measured", options.measured,
          "predictions beside the rows of these files of bench --json, and nothing else; "
          "may be combined with --json, --fixed-roles, --constants, and the rates --nvlink, "
          "--nic (several hosts), --tflops and --memory-bandwidth (--op layer)")
      ->type_name("FILE");
  verb->add_flag("--fixed-roles", options.fixed_roles,
                 "with --measured: files of builds in which each CTA keeps one role");
  add_seed(verb, options.seed, "of routing");
  add_json(verb, options.json);
  verb->add_option("--html", options.html, "a page with charts into this file");
  verb->footer(
      "examples:\n"
      "  switchyard plan --workload kimi-k2 --tokens 128 --hosts 1,2,4,...,256 --html plan.html\n"
      "  switchyard plan --hosts 4 --routing limited:8:4 --redundant 32 --balanced\n"
      "  switchyard plan --hosts 1 --tokens 4096 --sms 24 --micro-batches 2 --tflops 600\n"
      "  switchyard plan --measured bench/results/2026-11-23-h200x2-pair-prefill.json");
}

}  // namespace

std::vector<int> parse_hosts(const std::string& text, int ranks_per_host) {
  const auto want = [&](bool is_fine) {
    require(is_fine, Errc::kInvalidArgument,
            "plan: --hosts is \"{}\", must be ascending numbers such as 1,2,4 or 1,2,4,...,256, "
            "with at most {} ranks",
            text, kMaxPlannedRanks);
  };
  std::vector<int> hosts;
  bool continues = false;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    const std::string word = text.substr(at, comma - at);
    at = comma + 1;
    if (word == "...") {
      want(!continues && hosts.size() >= 2 && comma < text.size());
      continues = true;
      continue;
    }
    int number = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    want(error == std::errc{} && end == word.data() + word.size() && number >= 1 &&
         number <= kMaxPlannedRanks / ranks_per_host && (hosts.empty() || number > hosts.back()));
    if (continues) {
      const int ratio = hosts.back() / hosts[hosts.size() - 2];
      while (ratio > 1 && std::int64_t{hosts.back()} * ratio < number) {
        hosts.push_back(hosts.back() * ratio);
      }
      want(ratio > 1);
      continues = false;
    }
    hosts.push_back(number);
  }
  want(!continues);
  return hosts;
}

forecast::Machine plan_machine(const PlanOptions& options, const std::string& by_default) {
  forecast::Machine machine =
      forecast::find_machine(options.constants.empty() ? by_default : options.constants);
  constexpr double kMaxRate = 1e6;
  if (options.nvlink) {
    check_rate("--nvlink", *options.nvlink, kMaxRate);
    set_wire(machine, *options.nvlink, "--nvlink");
  }
  if (options.nic) {
    check_rate("--nic", *options.nic, kMaxRate);
    set_network(machine, *options.nic, "--nic");
  }
  if (options.tflops) {
    check_rate("--tflops", *options.tflops, kMaxRate);
    set_tflops(machine, *options.tflops, "--tflops");
  }
  return machine;
}

forecast::ExpertCosts plan_experts(const PlanOptions& options, const forecast::Machine& machine) {
  forecast::ExpertCosts experts;
  experts.tflops = machine.tflops;
  experts.weight_gb_per_second = options.memory_bandwidth.value_or(weight_gb_per_second(machine));
  experts.weight_bits = options.weight_bits;
  constexpr double kMaxWeightRate = 1e7;
  check_rate("--memory-bandwidth", experts.weight_gb_per_second, kMaxWeightRate);
  return experts;
}

forecast::Question plan_question(const PlanOptions& options) {
  forecast::Question question;
  question.machine = plan_machine(options, "h200");
  question.ranks_per_host = options.ranks_per_host;
  question.num_redundant = options.redundant;
  question.is_balanced = options.balanced;
  question.max_memory_bytes = options.max_memory * 1e9;
  measure::BenchShape& shape = question.shape;
  shape.workload = measure::find_workload(options.workload);
  shape.routing = measure::RoutingPattern::parse(options.routing, shape.workload.num_experts,
                                                 shape.workload.num_topk);
  shape.num_tokens = options.tokens;
  shape.scheme = *scheme_from_name(options.scheme);
  shape.num_sms = options.sms;
  shape.num_micro_batches = options.micro_batches;
  shape.seed = options.seed;
  require(!question.machine.is_gpu || options.ranks_per_host <= kMaxPushRanks,
          Errc::kInvalidArgument,
          "plan: --gpus-per-host is {}, must be at most {}, as many GPUs as an exchange can have",
          options.ranks_per_host, kMaxPushRanks);
  require(options.micro_batches <= options.tokens, Errc::kInvalidArgument,
          "plan: {} micro-batches of {} tokens, must be at most as many as tokens",
          options.micro_batches, options.tokens);
  check_sms(options, question.machine);
  check_memory(options.max_memory);
  question.experts = plan_experts(options, question.machine);
  return question;
}

CLI::App* add_plan(CLI::App& app, PlanOptions& options) {
  CLI::App* verb = app.add_subcommand(
      "plan", "predict times, bytes and memory of an exchange on machines that are not here");
  verb->add_option("--workload", options.workload,
                   "sizes of a model: one of " + measure::workload_names() +
                       "; or a config.json or its folder")
      ->capture_default_str();
  verb->add_option("--tokens", options.tokens, "tokens of each rank")
      ->check(CLI::Range(std::int64_t{1}, kMaxTokens))
      ->capture_default_str();
  verb->add_option("--gpus-per-host", options.ranks_per_host,
                   "ranks of each host, with constants of CPUs, too; at most 64 GPUs")
      ->check(CLI::Range(1, kMaxPlannedRanks))
      ->capture_default_str();
  verb->add_option(
          "--hosts", options.hosts,
          "numbers of hosts, N,N,...; '...' continues the geometric series; more than 64 GPU "
          "ranks are predicted, but no exchange takes as many")
      ->capture_default_str();
  verb->add_option("--routing", options.routing,
                   "uniform; zipf:A; limited:G:M; trace:FILE: as for bench")
      ->capture_default_str();
  verb->add_option("--redundant", options.redundant,
                   "copies of experts beyond one of each; default: the fewest that give every "
                   "rank equally many")
      ->check(CLI::Range(0, 65535));
  verb->add_flag("--balanced", options.balanced,
                 "experts are placed by balance_experts, for the load of another iteration");
  verb->add_option("--scheme", options.scheme, "quantization of rows on the wire")
      ->check(one_of(scheme_names([](const QuantScheme& scheme) {
        return !scheme.is_quantized() || has_row_scales(scheme);
      })))
      ->capture_default_str();
  verb->add_option("--micro-batches", options.micro_batches,
                   "parts into which a rank's tokens are split, so that calls and experts overlap; "
                   "on GPUs best with --sms")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  add_machine_options(verb, options);
  add_other_options(verb, options);
  return verb;
}

int plan(const CLI::App& verb, const PlanOptions& options) {
  if (!options.measured.empty()) check_beside_measured(verb);
  require(!options.fixed_roles || !options.measured.empty(), Errc::kInvalidArgument,
          "plan: --fixed-roles without --measured, to whose files it belongs; leave it out");
  check_json("plan", options.json);
  if (!options.html.empty()) check_output_path("plan: --html", options.html);
  if (!options.measured.empty()) {
    const std::vector<forecast::MeasuredFile> files = predict_measured(options);
    publish(
        options.json, [&] { return measured_text(files); }, [&] { return measured_json(files); });
    return 0;
  }
  const forecast::Question question = plan_question(options);
  const PlanReport report{options, question, run(options, question)};
  publish(
      options.json, [&] { return to_text(report); }, [&] { return to_json(report); });
  if (!options.html.empty()) write_file(options.html, to_html(report));
  return 0;
}

}  // namespace switchyard::cli
