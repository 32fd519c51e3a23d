// SPDX-License-Identifier: Apache-2.0
//
// exchange_soak: random exchanges of every kind, each with many pairs of dispatch and combine, held
// against the oracle (soak_exchange). On CPUs or GPUs; ranks are threads, another number for each
// exchange, or processes. The result is one JSON object. Exit codes: 0 everything agrees, 1
// something does not, 77 no GPU.

#include "conformance/exchange_soak.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "switchyard/device.h"
#include "switchyard/group.h"

#include "core/clock.h"
#include "core/commit.h"
#include "device/cuda_module.h"
#include "engine/engine.h"
#include "transport/env.h"
#include "transport/launcher.h"

namespace switchyard::conformance {
namespace {

constexpr int kNoGpu = 77;
constexpr double kSecondsPerReport = 60;

struct Options {
  double seconds = 10;
  std::int64_t pairs = 0;  ///< 0: no limit
  std::int64_t pairs_each = 200;
  std::uint64_t seed = 1;
  std::string device = "cpu";
  int ranks = 0;  ///< 0: from 1 to 8, as it comes
  bool processes = false;
  std::int64_t timeout_ms = 60'000;
  std::string command;
};

class Run {
 public:
  explicit Run(const Options& options) : options_(options), start_ns_(now_ns()) {}

  /// Each exchange has threads of its own as ranks, so what fails ends only that one.
  void with_threads() {
    while (goes_on()) {
      const ExchangeCase test = next_case();
      SoakTally tally;
      try {
        run_local_ranks(test.num_ranks,
                        [&](const Group& group) {
                          const SoakTally own = soak(group, test);
                          if (group.rank() == 0) tally = own;
                        },
                        {.engine = "local", .timeout_ms = options_.timeout_ms});
      } catch (const std::exception& error) {
        add_failure(error.what());
      }
      add(tally);
    }
  }

  /// One group for all; the first failure ends it.
  void with_processes(const Group& group) {
    engine_ = group.engine_name();
    try {
      while (group.control().all_gather_text({Phase::kSetup, "test"}, goes_on() ? "1" : "0")[0] ==
             "1") {
        add(soak(group, next_case()));
      }
    } catch (const std::exception& error) {
      add_failure(error.what());
    }
  }

  bool is_ok() const { return wrong_ == 0 && configurations_ > 0; }

  std::string json() const {
    nlohmann::ordered_json json;
    json["ok"] = is_ok();
    json["command"] = options_.command;
    json["commit"] = build_commit();
    json["device"] = options_.device;
    json["engine"] = engine_;
    json["ranks"] = options_.ranks == 0 ? "1-8" : std::to_string(options_.ranks);
    json["seed"] = options_.seed;
    json["seconds"] = seconds();
    json["configurations"] = configurations_;
    json["not_supported"] = not_supported_;
    json["pairs"] = pairs_;
    json["wrong"] = wrong_;
    json["first_failure"] = first_failure_;
    return json.dump(1);
  }

 private:
  double seconds() const { return static_cast<double>(now_ns() - start_ns_) * 1e-9; }

  bool goes_on() const {
    return seconds() < options_.seconds && (options_.pairs == 0 || pairs_ < options_.pairs);
  }

  ExchangeCase next_case() {
    const std::vector<int> ranks = options_.ranks > 0 ? std::vector<int>{options_.ranks}
                                                      : std::vector<int>{1, 2, 3, 4, 5, 6, 7, 8};
    return random_exchange_case(options_.seed * 1'000'003 + num_cases_++, ranks);
  }

  SoakTally soak(const Group& group, const ExchangeCase& test) const {
    const Device device =
        options_.device == "cpu" ? Device::cpu() : device_of(options_.device, group);
    return soak_exchange(group, test, device, options_.pairs_each);
  }

  void add(const SoakTally& tally) {
    pairs_ += tally.pairs;
    configurations_ += tally.pairs > 0 ? 1 : 0;
    not_supported_ += tally.skipped.empty() ? 0 : 1;
    if (seconds() < next_report_) return;
    next_report_ = seconds() + kSecondsPerReport;
    std::fprintf(stderr, "%6.0f s %7ld configurations %9ld pairs %ld wrong\n", seconds(),
                 static_cast<long>(configurations_), static_cast<long>(pairs_),
                 static_cast<long>(wrong_));
  }

  void add_failure(const std::string& what) {
    ++wrong_;
    if (first_failure_.empty()) first_failure_ = what;
    std::fprintf(stderr, "exchange_soak: %s\n", what.c_str());
  }

  const Options& options_;
  std::int64_t start_ns_;
  double next_report_ = kSecondsPerReport;
  std::string engine_ = "local";
  std::uint64_t num_cases_ = 0;
  std::int64_t configurations_ = 0;
  std::int64_t not_supported_ = 0;
  std::int64_t pairs_ = 0;
  std::int64_t wrong_ = 0;  ///< configurations
  std::string first_failure_;
};

int start_processes(const Options& options, char** argv) {
  LaunchOptions launch_options;
  launch_options.num_ranks = options.ranks;
  launch_options.command = {std::filesystem::read_symlink("/proc/self/exe").string()};
  for (char** argument = argv + 1; *argument != nullptr; ++argument) {
    launch_options.command.emplace_back(*argument);
  }
  const LaunchResult result = launch(launch_options);
  if (result.culprit >= 0) {
    std::fprintf(stderr, "rank %d: %s\n", result.culprit, result.reason.c_str());
  }
  return result.exit_code;
}

int run(const Options& options, char** argv) {
  if (options.device == "cuda") prepare_for_shared_gpus();
  const bool is_rank = options.processes && discover_ranks().source != "none";
  if (options.device == "cuda" && num_cuda_devices() == 0) {
    std::puts("no CUDA device on this machine");
    return kNoGpu;
  }
  if (options.processes && !is_rank) return start_processes(options, argv);
  Run run(options);
  int rank = 0;
  if (is_rank) {
    const Group group =
        Group::from_environment({.engine = "shm", .timeout_ms = options.timeout_ms});
    rank = group.rank();
    run.with_processes(group);
  } else {
    run.with_threads();
  }
  if (rank == 0) std::puts(run.json().c_str());
  return run.is_ok() ? 0 : 1;
}

}  // namespace
}  // namespace switchyard::conformance

int main(int argc, char** argv) {
  switchyard::conformance::Options options;
  CLI::App app{"Random exchanges with many pairs each, held against the oracle", "exchange_soak"};
  app.add_option("--seconds", options.seconds, "ends after so long, with the next exchange");
  app.add_option("--pairs", options.pairs, "ends after so many pairs; 0: no limit");
  app.add_option("--pairs-each", options.pairs_each, "pairs of one exchange")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--seed", options.seed, "of everything that is random");
  app.add_option("--device", options.device, "cpu or cuda")->check(CLI::IsMember({"cpu", "cuda"}));
  CLI::Option* ranks = app.add_option("--ranks", options.ranks, "default: from 1 to 8 at random")
                           ->check(CLI::Range(1, 64));
  app.add_flag("--processes", options.processes, "ranks are processes, not threads")->needs(ranks);
  app.add_option("--timeout", options.timeout_ms, "longest wait for a peer in ms");
  CLI11_PARSE(app, argc, argv);
  for (int i = 0; i < argc; ++i) {
    const std::string argument = i == 0 ? "exchange_soak" : std::string(" ") + argv[i];
    options.command += argument;
  }
  try {
    return switchyard::conformance::run(options, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "exchange_soak: %s\n", error.what());
    return 1;
  }
}
