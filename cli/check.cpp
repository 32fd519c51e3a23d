// SPDX-License-Identifier: Apache-2.0

#include "check.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iterator>

#include <CLI/CLI.hpp>

#include "check_launched.h"
#include "check_report.h"
#include "check_run.h"
#include "common_options.h"
#include "core/clock.h"
#include "core/fail.h"
#include "device/cuda_module.h"
#include "help.h"
#include "transport/env.h"

namespace switchyard::cli {
namespace {

using conformance::CheckCase;

constexpr const char* kHostsEngine = "local-hosts";

bool is_wanted(const CheckOptions& options, const CheckCase& test) {
  if (options.quick && !test.is_quick) return false;
  if (options.device != "all" && test.device != options.device) return false;
  if (options.engine != "all" && !test.engine.empty() && test.engine != options.engine)
    return false;
  return matches(options.filter, test.name);
}

// In place of the cases of several hosts those of so many ranks.
void replace_hosts(std::vector<CheckCase>& cases, std::size_t num_ranks) {
  const auto has_hosts = [](const CheckCase& test) { return test.engine == kHostsEngine; };
  const auto first = std::ranges::find_if(cases, has_hosts) - cases.begin();
  std::erase_if(cases, has_hosts);
  std::vector<CheckCase> own =
      conformance::launched_cases(kHostsEngine, static_cast<int>(num_ranks));
  cases.insert(cases.begin() + first, std::make_move_iterator(own.begin()),
               std::make_move_iterator(own.end()));
}

// Ranks that are processes write their results to a file of /proc.
void skip_processes(std::vector<CheckCase>& cases) {
  if (access("/proc/self/fd", X_OK) == 0) return;
  for (CheckCase& test : cases) {
    if (test.engine == "shm") test.skipped = "/proc is not mounted";
  }
}

}  // namespace

bool matches(const std::string& pattern, const std::string& name) {
  if (pattern.find('*') == pattern.npos) return name.find(pattern) != name.npos;
  return matches_pattern(pattern, name);
}

CLI::App* add_check(CLI::App& app, CheckOptions& options) {
  CLI::App* verb = app.add_subcommand(
      "check", "try every engine, layout, class and scheme against a slow, exact oracle");
  // A hidden option that check passes to its ranks. Its group must come before the help flag, or
  // the help text ends with an empty line.
  verb->set_help_flag();
  verb->add_option("--results", options.results)->group("");
  verb->set_help_flag("-h,--help", "Print this help message and exit");
  verb->add_option("--device", options.device,
                   "processor under test: cpu, cuda (GPUs, and the exchange between them) or all")
      ->check(one_of({"cpu", "cuda", "all"}))
      ->capture_default_str();
  verb->add_option(
          "--engine", options.engine,
          "which cases that have ranks: local (threads), shm (processes), local-messages (threads "
          "without windows), local-hosts (threads of several hosts) or all; under mpirun, where "
          "its ranks check the exchange among themselves: shm, mpi or all")
      ->check(one_of({"local", "shm", "local-messages", "local-hosts", "mpi", "all"}))
      ->capture_default_str();
  verb->add_option("--ranks-per-host", options.ranks_per_host,
                   "N,N,...: ranks of the first host, of the second, ...; for local-hosts, by "
                   "default 2 each, or for mpirun's ranks on one machine");
  verb->add_option(
      "--filter", options.filter,
      "only cases whose name contains this text; with *, whose name matches this pattern");
  verb->add_flag("--quick", options.quick,
                 "only the small cases: at most two minutes on two cores");
  verb->add_flag("--list", options.list, "print the names of the cases and run nothing");
  add_json(verb, options.json);
  add_seed(verb, options.seed, "of all random values");
  add_timeout(verb, options.timeout_ms);
  return verb;
}

int check(const CheckOptions& options, char** argv, std::vector<CheckCase> cases) {
  const bool is_launched = options.results.empty() && discover_ranks().source != "none";
  if (is_launched && !options.list) return check_launched(options);
  std::vector<int> hosts;
  if (!options.ranks_per_host.empty()) {
    hosts = parse_ranks_per_host(options.ranks_per_host);
    replace_hosts(cases, hosts.size());
  }
  std::erase_if(cases, [&](const CheckCase& test) { return !is_wanted(options, test); });
  require(!cases.empty(), Errc::kInvalidArgument,
          "check: no case is left by --filter \"{}\", --device {} and --engine {}; see check "
          "--list, and use * for any text, as in 'layers/*low_latency*'",
          options.filter, options.device, options.engine);
  require(
      hosts.empty() ||
          std::ranges::any_of(cases,
                              [](const CheckCase& test) { return test.engine == kHostsEngine; }),
      Errc::kInvalidArgument,
      "check: --ranks-per-host is {}, but --filter \"{}\", --device {} and --engine {} leave no "
      "case of {}; leave one of them out",
      options.ranks_per_host, options.filter, options.device, options.engine, kHostsEngine);
  if (options.list) {
    std::fputs(list_text(cases).c_str(), stdout);
    return 0;
  }
  if (options.device != "cpu") prepare_for_shared_gpus();
  require_device("check", options.device);
  const bool has_gpus = options.device != "cpu";
  if (has_gpus) skip_crowded(cases, cuda_module().device_count());
  skip_processes(cases);
  CheckPlan plan{std::move(cases), options.seed, options.timeout_ms, options.json != "-",
                 std::move(hosts)};
  if (!options.results.empty()) return run_as_rank(plan, options.results);
  check_json("check", options.json);
  const std::int64_t start = now_ns();
  CheckReport report{options, plan.cases, run_plan(plan, argv)};
  if (has_gpus) report.gpus = names_of_gpus();
  report.seconds = static_cast<double>(now_ns() - start) * 1e-9;
  publish(
      options.json, [&] { return to_text(report); }, [&] { return to_json(report); });
  return report.is_ok() ? 0 : 1;
}

}  // namespace switchyard::cli
