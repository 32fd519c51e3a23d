// SPDX-License-Identifier: Apache-2.0
//
// Cases whose ranks are threads run one at a time. For processes, the ranks are started once per
// number of ranks and run all cases of that number: every rank appends one line per case to an
// unnamed file. When a case has ended the group, that file also tells the ranks of the next start
// where to continue.

#include "check_run.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <mutex>

#include <nlohmann/json.hpp>

#include "core/clock.h"
#include "core/fail.h"
#include "core/settings.h"
#include "device/cuda_module.h"
#include "engine/group_options.h"
#include "engine/local_engine.h"
#include "memory_file.h"
#include "progress.h"
#include "start_ranks.h"
#include "transport/env.h"
#include "transport/launcher.h"

namespace switchyard::cli {
namespace {

using conformance::Agreement;
using conformance::CheckCase;

constexpr int kMaxRanksPerGpu = 7;

std::vector<std::shared_ptr<Engine>> engines_of(const CheckCase& test, const CheckPlan& plan) {
  const std::int64_t timeout_ms = timeout_of({.timeout_ms = plan.timeout_ms});
  const bool has_hosts = test.engine == "local-hosts";
  std::vector<int> hosts = has_hosts ? plan.hosts : std::vector<int>();
  for (int rank = 0; has_hosts && plan.hosts.empty() && rank < test.num_ranks; ++rank) {
    hosts.push_back(rank / 2);
  }
  const bool has_windows = test.engine != kLocalMessagesEngine;
  return make_local_engines(test.num_ranks, timeout_ms,
                            has_windows ? kLocalEngine : kLocalMessagesEngine, hosts);
}

CheckResult run_here(const CheckCase& test, const CheckPlan& plan) {
  CheckResult result;
  result.is_done = true;
  result.agreement.skipped = test.skipped;
  if (result.is_skipped()) return result;
  try {
    if (test.engine.empty()) return run_part(test, Group(), plan.seed);
    std::mutex mutex;
    run_engines(engines_of(test, plan), [&](const Group& group) {
      const CheckResult part = run_part(test, group, plan.seed);
      const std::lock_guard lock(mutex);
      merge(result, part);
    });
  } catch (const std::exception& error) {
    result.failure = error.what();
  }
  return result;
}

// ---- processes ---------------------------------------------------------------------------------

// A line of the log, a file in memory that ranks open by its path.
struct LogLine {
  std::size_t number = 0;
  int rank = 0;
  bool is_secondary = false;  ///< the failure only reports that another rank failed
  CheckResult result;
};

void append(const std::string& path, const LogLine& line) {
  nlohmann::json json = json_of(line.result);
  json["case"] = line.number;
  json["rank"] = line.rank;
  json["secondary"] = line.is_secondary;
  const std::string text =
      json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  const int fd = open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  require(fd >= 0, Errc::kSystem, "check: cannot open {}", path);
  const ssize_t written = write(fd, text.data(), text.size());
  close(fd);
  require(written == static_cast<ssize_t>(text.size()), Errc::kSystem, "check: cannot write {}",
          path);
}

std::vector<LogLine> read_log(const std::string& path) {
  std::vector<LogLine> lines;
  std::ifstream file(path);
  for (std::string text; std::getline(file, text);) {
    const nlohmann::json json = nlohmann::json::parse(text);
    LogLine line;
    line.number = json["case"];
    line.rank = json["rank"];
    line.is_secondary = json["secondary"];
    line.result = result_of(json);
    lines.push_back(std::move(line));
  }
  return lines;
}

// Collects what the ranks wrote. A case is done when one rank failed or all ranks passed.
void collect(const std::string& path, const CheckPlan& plan, std::vector<CheckResult>& results) {
  std::vector<int> num_passed(plan.cases.size(), 0);
  for (CheckResult& result : results) {
    if (!result.is_done) result = {};
  }
  std::vector<bool> is_secondary(plan.cases.size(), true);
  for (const LogLine& line : read_log(path)) {
    CheckResult& result = results[line.number];
    if (line.result.failure.empty()) {
      CheckResult merged = result;
      merge(merged, line.result);
      merged.is_done = ++num_passed[line.number] == plan.cases[line.number].num_ranks;
      if (result.failure.empty()) result = merged;
    } else if (is_secondary[line.number]) {
      is_secondary[line.number] = line.is_secondary;
      result.failure = line.result.failure;
      result.is_done = true;
    }
  }
}

bool is_of(const CheckCase& test, int num_ranks) {
  return test.engine == "shm" && test.num_ranks == num_ranks && test.skipped.empty();
}

std::size_t first_open(const CheckPlan& plan, const std::vector<CheckResult>& results,
                       int num_ranks) {
  std::size_t i = 0;
  while (i < results.size() && (results[i].is_done || !is_of(plan.cases[i], num_ranks))) ++i;
  return i;
}

void run_processes(int num_ranks, const CheckPlan& plan, char** argv,
                   std::vector<CheckResult>& results) {
  LaunchOptions options;
  options.num_ranks = num_ranks;
  options.command = own_command(argv);
  const MemoryFile log("check");
  options.command.push_back("--results=" + log.path());
  // The log has what a failing rank reports, so its stderr is discarded.
  const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
  options.error_fd = plan.shows_progress ? STDERR_FILENO : null;
  for (std::size_t next = first_open(plan, results, num_ranks); next < results.size();
       next = first_open(plan, results, num_ranks)) {
    const LaunchResult launched = launch(options);
    collect(log.path(), plan, results);
    if (first_open(plan, results, num_ranks) == next) {
      results[next].failure = launched.reason.empty() ? "the ranks ended early" : launched.reason;
      results[next].is_done = true;
      append(log.path(), {next, 0, false, results[next]});
    }
    if (launched.exit_code > 128) break;  // interrupted
  }
  if (null >= 0) close(null);
}

}  // namespace

std::vector<std::string> names_of_gpus() {
  std::vector<std::string> names;
  const DeviceFacts facts = cuda_module().describe_devices(setting("SWITCHYARD_HEAP").text);
  for (const GpuFacts& gpu : facts.gpus) names.push_back(gpu.name);
  return names;
}

void skip_crowded(std::vector<conformance::CheckCase>& cases, int num_gpus) {
  for (conformance::CheckCase& test : cases) {
    if (test.device != "cuda" || test.engine.empty()) continue;
    if ((test.num_ranks + num_gpus - 1) / num_gpus <= kMaxRanksPerGpu) continue;
    test.skipped = fmt::format("{} ranks on {} GPU{}, at most {} share one", test.num_ranks,
                               num_gpus, num_gpus == 1 ? "" : "s", kMaxRanksPerGpu);
  }
}

std::vector<CheckResult> run_plan(const CheckPlan& plan, char** argv) {
  std::vector<CheckResult> results(plan.cases.size());
  std::vector<int> rank_counts;
  {
    Progress progress("check", static_cast<std::int64_t>(plan.cases.size()), plan.shows_progress);
    for (std::size_t i = 0; i < plan.cases.size(); ++i) {
      const CheckCase& test = plan.cases[i];
      if (test.engine == "shm" && test.skipped.empty()) {
        if (std::ranges::find(rank_counts, test.num_ranks) == rank_counts.end()) {
          rank_counts.push_back(test.num_ranks);
        }
        continue;
      }
      results[i] = run_here(test, plan);
      progress.update(static_cast<std::int64_t>(i) + 1);
    }
  }
  for (const int num_ranks : rank_counts) run_processes(num_ranks, plan, argv, results);
  return results;
}

int run_as_rank(const CheckPlan& plan, const std::string& results) {
  const RankInfo info = discover_ranks();
  std::vector<bool> is_done(plan.cases.size(), false);
  // A case that ended the previous group has at least one line, which is enough to skip it.
  for (const LogLine& line : read_log(results)) is_done[line.number] = true;
  const Group group = Group::from_environment({.engine = "shm", .timeout_ms = plan.timeout_ms});
  group.barrier();  // every rank has read the log
  Progress progress(fmt::format("check, {} processes", info.size),
                    static_cast<std::int64_t>(plan.cases.size()),
                    plan.shows_progress && info.rank == 0);
  for (std::size_t i = 0; i < plan.cases.size(); ++i) {
    if (is_done[i] || !is_of(plan.cases[i], info.size)) continue;
    LogLine line{i, info.rank, false, {}};
    try {
      line.result = run_part(plan.cases[i], group, plan.seed);
    } catch (const Error& error) {
      line.is_secondary = error.code() == Errc::kAborted || error.code() == Errc::kPeerLost;
      line.result.failure = error.what();
    } catch (const std::exception& error) {
      line.result.failure = error.what();
    }
    append(results, line);
    // Other ranks may be waiting in the middle of a call, so this group cannot continue.
    if (!line.result.failure.empty()) {
      group.abort("a case failed");
      return 1;
    }
    progress.update(static_cast<std::int64_t>(i) + 1);
  }
  return 0;
}

}  // namespace switchyard::cli
