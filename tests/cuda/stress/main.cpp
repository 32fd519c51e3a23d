// SPDX-License-Identifier: Apache-2.0
//
// exchange_stress: repeats dispatch and combine between GPUs and compares every byte on the GPU.
// Ranks are threads or processes of this host; with fewer GPUs than ranks some share a GPU. All
// cases get a share of the time; the result is one JSON object. Exit codes: 0 all bytes are right
// (or, with --inject, exactly the spoiled ones are wrong), 1 some are not, 77 no GPU.

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "switchyard/version.h"

#include "core/clock.h"
#include "core/commit.h"
#include "core/fail.h"
#include "core/settings.h"
#include "cuda/base/check.h"
#include "device/cuda_module.h"
#include "engine/engine.h"
#include "stress_rank.h"
#include "transport/env.h"
#include "transport/launcher.h"

namespace switchyard::test {
namespace {

constexpr int kNoGpu = 77;
constexpr double kRoundSeconds = 0.1;  // time between checks of the clock

struct Options {
  int ranks = 0;  ///< 0: one per GPU
  bool processes = false;
  double seconds = 10;
  std::int64_t rows = 0;  ///< 0: no limit
  std::int64_t pairs = 0;
  std::uint32_t seed = 1;
  std::string only;
  bool small = false;
  bool list = false;
  StressOptions stress;
};

struct CaseResult {
  std::string name;
  double seconds = 0;
  std::int64_t pairs = 0;  ///< every rank takes part in each
  std::int64_t rows = 0;   ///< this and the following: summed over ranks
  std::int64_t outputs = 0;
  std::int64_t bytes = 0;
  std::int64_t wrong = 0;
  std::int64_t injected = 0;
  std::string difference;
};

std::vector<std::string> names_of_gpus() {
  std::vector<std::string> names;
  for (const auto& gpu : cuda_module().describe_devices(setting("SWITCHYARD_HEAP").text).gpus) {
    names.push_back(gpu.name);
  }
  return names;
}

double seconds_since(std::int64_t start_ns) {
  return static_cast<double>(now_ns() - start_ns) * 1e-9;
}

std::string text_of(const StressTally& tally, int rank) {
  if (tally.has_difference == 0) return {};
  constexpr const char* kParts[] = {"count",  "element", "scale",   "id",
                                    "weight", "output",  "payload", "returned weight"};
  const StressDifference& d = tally.difference;
  return fmt::format(
      "rank {}, step {}: {} {} of row {} (rank {}, token {}) is {:08x}, must be {:08x}", rank,
      d.step, kParts[d.part % std::size(kParts)], d.word, d.row, d.source, d.token, d.got, d.want);
}

/// Adds up the ranks' results.
CaseResult gather(const Group& group, const StressTally& tally) {
  const std::string own =
      fmt::format("{} {} {} {} {} {}", tally.num_rows, tally.num_outputs, tally.num_bytes,
                  tally.num_wrong, tally.num_injected, text_of(tally, group.rank()));
  CaseResult all;
  for (const std::string& text : group.control().all_gather_text({Phase::kSetup, "test"}, own)) {
    std::istringstream in(text);
    std::int64_t rows = 0, outputs = 0, bytes = 0, wrong = 0, injected = 0;
    std::string difference;
    in >> rows >> outputs >> bytes >> wrong >> injected;
    std::getline(in >> std::ws, difference);
    all.rows += rows, all.outputs += outputs, all.bytes += bytes;
    all.wrong += wrong, all.injected += injected;
    if (all.difference.empty()) all.difference = difference;
  }
  return all;
}

class Run {
 public:
  Run(const Group& group, const Options& options)
      : group_(group), options_(options), start_ns_(now_ns()) {}

  int run() {
    std::vector<StressCase> cases = stress_cases(group_.size(), options_.seed, options_.small);
    std::erase_if(cases, [&](const StressCase& c) {
      // With a capacity a dispatch waits for all ranks before it sends.
      const bool cannot_run = options_.stress.by_turns && c.shape.capacity > 0;
      return cannot_run || c.name.find(options_.only) == std::string::npos;
    });
    double shares = 0;
    for (const StressCase& c : cases) shares += c.share;
    for (const StressCase& c : cases) {
      const double left = options_.seconds - seconds_since(start_ns_);
      if (agree(is_over() || left <= 0 ? 0 : 1) == 0) break;
      run_case(c, left * c.share / shares);
      shares -= c.share;
    }
    if (group_.rank() == 0) std::fputs((json() + "\n").c_str(), stdout);
    std::fflush(stdout);
    return is_ok() ? 0 : 1;
  }

 private:
  // Returns rank 0's number, so that its clock decides.
  int agree(int number) {
    return std::stoi(
        group_.control().all_gather_text({Phase::kSetup, "test"}, std::to_string(number))[0]);
  }
  std::int64_t total(std::int64_t CaseResult::*of) const {
    std::int64_t sum = 0;
    for (const CaseResult& one : results_) sum += one.*of;
    return sum;
  }
  bool is_over() const {
    return (options_.rows > 0 && total(&CaseResult::rows) >= options_.rows) ||
           (options_.pairs > 0 && total(&CaseResult::pairs) >= options_.pairs);
  }
  bool is_ok() const {
    const std::int64_t wrong = total(&CaseResult::wrong);
    const std::int64_t injected = total(&CaseResult::injected);
    return wrong == injected && (injected > 0) == options_.stress.injects && !results_.empty();
  }

  void run_case(const StressCase& c, double seconds) {
    const std::int64_t start = now_ns();
    StressRank rank(group_, c, options_.stress);
    heap_ = rank.exchange().heap();
    shares_gpu_ = rank.exchange().is_shared_gpu();
    std::int64_t num_rounds = 0;
    std::int64_t num_run = 0;
    int next = 1;
    double last = 0;
    while (next > 0) {
      rank.run(next);
      num_rounds += next;
      num_run = num_rounds * rank.steps_per_round();
      const double now = seconds_since(start);
      const double round = std::max(1e-6, (now - last) / next);
      last = now;
      const bool goes_on = now < seconds && !reaches_limit(num_run, rank.tally());
      const double wanted = std::min(kRoundSeconds, seconds - now) / round;
      next = agree(goes_on ? std::clamp(static_cast<int>(wanted), 1, 2 * next + 8) : 0);
    }
    CaseResult result = gather(group_, rank.tally());
    result.name = c.name;
    result.pairs = num_run;
    result.seconds = seconds_since(start);
    results_.push_back(result);
    if (group_.rank() == 0) {
      std::fprintf(stderr, "%-48s %6.2f s %9ld pairs %11ld rows %ld wrong %s\n", c.name.c_str(),
                   result.seconds, static_cast<long>(result.pairs), static_cast<long>(result.rows),
                   static_cast<long>(result.wrong), result.difference.c_str());
    }
  }

  // The other ranks have about as many rows.
  bool reaches_limit(std::int64_t pairs, const StressTally& tally) const {
    const std::int64_t rows = static_cast<std::int64_t>(tally.num_rows) * group_.size();
    return (options_.pairs > 0 && total(&CaseResult::pairs) + pairs >= options_.pairs) ||
           (options_.rows > 0 && total(&CaseResult::rows) + rows >= options_.rows);
  }

  std::string json() const {
    nlohmann::ordered_json json;
    json["ok"] = is_ok();
    json["version"] = build_summary();
    json["commit"] = build_commit();
    json["device"] = names_of_gpus();
    json["ranks"] = group_.size();
    json["engine"] = group_.engine_name();
    json["heap"] = heap_;
    json["shared_gpu"] = shares_gpu_;
    json["seed"] = options_.seed;
    json["max_delay_us"] = options_.stress.max_delay_us;
    json["seconds"] = seconds_since(start_ns_);
    json["pairs"] = total(&CaseResult::pairs);
    json["rows"] = total(&CaseResult::rows);
    json["outputs"] = total(&CaseResult::outputs);
    json["bytes"] = total(&CaseResult::bytes);
    json["wrong"] = total(&CaseResult::wrong);
    json["injected"] = total(&CaseResult::injected);
    json["cases"] = nlohmann::ordered_json::array();
    for (const CaseResult& one : results_) {
      json["cases"].push_back({{"name", one.name},
                               {"seconds", one.seconds},
                               {"pairs", one.pairs},
                               {"rows", one.rows},
                               {"bytes", one.bytes},
                               {"wrong", one.wrong},
                               {"first", one.difference}});
    }
    return json.dump(1);
  }

  Group group_;
  const Options& options_;
  std::int64_t start_ns_;
  std::vector<CaseResult> results_;
  std::string heap_;
  bool shares_gpu_ = false;
};

int run_rank(const Group& group, const Options& options) {
  int num_gpus = 0;
  cuda::check_cuda(cudaGetDeviceCount(&num_gpus), "cudaGetDeviceCount");
  cuda::check_cuda(cudaSetDevice(group.rank() % num_gpus), "cudaSetDevice");
  return Run(group, options).run();
}

int run_threads(const Options& options, int num_ranks) {
  int code = 0;
  run_local_ranks(num_ranks,
                  [&](const Group& group) {
                    const int own = run_rank(group, options);
                    if (group.rank() == 0) code = own;
                  },
                  {.engine = "local"});
  return code;
}

int run_processes(int num_ranks, char** argv) {
  LaunchOptions options;
  options.num_ranks = num_ranks;
  options.command = {std::filesystem::read_symlink("/proc/self/exe").string()};
  for (char** argument = argv + 1; *argument != nullptr; ++argument) {
    options.command.emplace_back(*argument);
  }
  const LaunchResult result = launch(options);
  if (result.culprit >= 0) {
    std::fprintf(stderr, "rank %d: %s\n", result.culprit, result.reason.c_str());
  }
  return result.exit_code;
}

int run(const Options& options, char** argv) {
  if (discover_ranks().source != "none") {
    return run_rank(Group::from_environment({.engine = "shm"}), options);
  }
  if (options.list) {
    for (const StressCase& c : stress_cases(2, options.seed, options.small)) {
      std::puts(c.name.c_str());
    }
    return 0;
  }
  int num_gpus = 0;
  if (cudaGetDeviceCount(&num_gpus) != cudaSuccess || num_gpus == 0) {
    std::puts("no CUDA device on this machine");
    return kNoGpu;
  }
  const int num_ranks = options.ranks > 0 ? options.ranks : num_gpus;
  return options.processes ? run_processes(num_ranks, argv) : run_threads(options, num_ranks);
}

void add_options(CLI::App& app, Options& options) {
  app.add_option("--ranks", options.ranks, "default: one for each GPU")
      ->check(CLI::Range(1, kMaxStressRanks));
  app.add_flag("--processes", options.processes, "ranks are processes, not threads");
  app.add_option("--seconds", options.seconds, "ends after so long");
  app.add_option("--rows", options.rows, "ends after so many received rows");
  app.add_option("--pairs", options.pairs, "ends after so many pairs");
  app.add_option("--seed", options.seed, "of everything that is random");
  app.add_option("--only", options.only, "cases with this in their name");
  app.add_flag("--small", options.small, "few tokens, short rows: for tools that are slow");
  app.add_flag("--by-turns", options.stress.by_turns,
               "no kernel starts before those that it waits for have ended");
  app.add_flag("--inject", options.stress.injects, "spoil bytes, which must be found");
  app.add_option("--max-delay", options.stress.max_delay_us,
                 "longest random delay of ranks and kernels in us; 0: none")
      ->check(CLI::Range(0, 1'000'000));
  app.add_option("--timeout", options.stress.timeout_ms, "longest wait of a kernel in ms");
  app.add_flag("--list", options.list, "names of the cases");
}

}  // namespace
}  // namespace switchyard::test

int main(int argc, char** argv) {
  switchyard::test::Options options;
  CLI::App app{"Compares every byte of dispatch and combine between GPUs", "exchange_stress"};
  switchyard::test::add_options(app, options);
  CLI11_PARSE(app, argc, argv);
  switchyard::prepare_for_shared_gpus();
  try {
    return switchyard::test::run(options, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "exchange_stress: %s\n", error.what());
    return 1;
  }
}
