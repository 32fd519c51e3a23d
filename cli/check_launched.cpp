// SPDX-License-Identifier: Apache-2.0
//
// Ranks cannot be started again, so the first case that fails is the last: the others may wait in
// the middle of it. Results of cases that passed are gathered once, at the end.

#include "check_launched.h"

#include <charconv>
#include <cstdio>

#include <nlohmann/json.hpp>

#include "check_report.h"
#include "check_result.h"
#include "check_run.h"
#include "common_options.h"
#include "core/clock.h"
#include "core/fail.h"
#include "core/settings.h"
#include "engine/control.h"
#include "exchange/agree.h"
#include "progress.h"
#include "transport/env.h"

namespace switchyard::cli {
namespace {

using conformance::CheckCase;

// Ranks of this machine say that they are of several hosts.
void take_host(const std::string& ranks_per_host, const RankInfo& ranks) {
  if (ranks_per_host.empty()) return;
  const std::vector<int> hosts = parse_ranks_per_host(ranks_per_host);
  require(hosts.size() == static_cast<std::size_t>(ranks.size), Errc::kInvalidArgument,
          "check: --ranks-per-host {} is of {} ranks, but {} started {}", ranks_per_host,
          hosts.size(), ranks.source, ranks.size);
  const int host = hosts[static_cast<std::size_t>(ranks.rank)];
  set_setting("SWITCHYARD_HOST_ID", fmt::format("host {}", host));
}

Group join(const CheckOptions& options) {
  const std::string engine = options.engine == "all" ? "" : options.engine;
  const Group group = Group::from_environment({.engine = engine, .timeout_ms = options.timeout_ms});
  require_agreement(group.control(), {Phase::kSetup, "options"}, "check",
                    {{"--engine", options.engine},
                     {"--filter", options.filter},
                     {"--quick", options.quick ? "set" : "its default"},
                     {"--ranks-per-host", options.ranks_per_host},
                     {"--seed", std::to_string(options.seed)}});
  return group;
}

class Launched {
 public:
  Launched(const CheckOptions& options, const Group& group) : group_(group) {
    report_.options = options;
    for (CheckCase& test : conformance::launched_cases(group.engine_name(), group.size())) {
      const bool is_wanted = test.is_quick || !options.quick;
      if (is_wanted && matches(options.filter, test.name)) report_.cases.push_back(std::move(test));
    }
    require(!report_.cases.empty(), Errc::kInvalidArgument,
            "check: no case is left by --filter \"{}\"; names begin with exchange/{}/P{}",
            options.filter, group.engine_name(), group.size());
    report_.results.resize(report_.cases.size());
  }

  CheckReport run() {
    const std::int64_t start = now_ns();
    {
      Progress progress("check", static_cast<std::int64_t>(report_.cases.size()),
                        group_.rank() == 0 && report_.options.json != "-");
      std::size_t i = 0;
      while (i < report_.cases.size() && run_case(i)) {
        progress.update(static_cast<std::int64_t>(++i));
      }
      if (i == report_.cases.size()) gather();
    }
    report_.seconds = static_cast<double>(now_ns() - start) * 1e-9;
    return std::move(report_);
  }

 private:
  // False when it failed, here or on another rank.
  bool run_case(std::size_t number) {
    CheckResult& result = report_.results[number];
    const CheckCase& test = report_.cases[number];
    try {
      result = run_part(test, group_, report_.options.seed);
      return true;
    } catch (const std::exception& error) {
      result.failure = error.what();
      result.is_done = true;
    }
    group_.abort(fmt::format("{}: {}", test.name, result.failure));
    for (std::size_t i = number + 1; i < report_.results.size(); ++i) {
      report_.results[i].agreement.skipped = "a case before them ended the group";
      report_.results[i].is_done = true;
    }
    return false;
  }

  void gather() {
    nlohmann::json own = nlohmann::json::array();
    for (const CheckResult& result : report_.results) own.push_back(json_of(result));
    const std::vector<std::string> texts = group_.control().all_gather_text(
        {Phase::kSetup, "results"},
        own.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
    for (const std::string& text : texts) {
      const nlohmann::json other = nlohmann::json::parse(text);
      for (std::size_t i = 0; i < report_.results.size(); ++i) {
        merge(report_.results[i], result_of(other.at(i)));
      }
    }
  }

  Group group_;
  CheckReport report_;
};

}  // namespace

std::vector<int> parse_ranks_per_host(const std::string& text) {
  std::vector<int> hosts;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (int host = 0;; ++host) {
    int num_ranks = 0;
    const auto [next, error] = std::from_chars(at, end, num_ranks);
    require(error == std::errc{} && (next == end || *next == ',') && num_ranks >= 1 &&
                num_ranks <= kMaxRanks,
            Errc::kInvalidArgument,
            "check: --ranks-per-host is \"{}\", must be numbers from 1 to {} with commas between",
            text, kMaxRanks);
    hosts.insert(hosts.end(), static_cast<std::size_t>(num_ranks), host);
    if (next == end) return hosts;
    at = next + 1;
  }
}

int check_launched(const CheckOptions& options) {
  const RankInfo ranks = discover_ranks();
  require(options.device == "cpu", Errc::kInvalidArgument,
          "check: --device {}, but {} started {} ranks, and those check CPUs alone; without a "
          "launcher it starts ranks itself",
          options.device, ranks.source, ranks.size);
  take_host(options.ranks_per_host, ranks);
  if (ranks.rank == 0) check_json("check", options.json);
  const Group group = join(options);
  const CheckReport report = Launched(options, group).run();
  if (group.rank() != 0) return 0;
  publish(
      options.json, [&] { return to_text(report); }, [&] { return to_json(report); });
  return report.is_ok() ? 0 : 1;
}

}  // namespace switchyard::cli
