// SPDX-License-Identifier: Apache-2.0
//
// kill_trials: ranks that are processes make exchanges while one or two of them are killed or
// stopped, or start late, at random moments from the set-up on. Every other rank must end within
// the timeout and a second, with an error that a peer explains, and nothing may be left behind: no
// process, socket, file or shared memory. A trial on GPUs begins when all ranks have their CUDA
// context: the driver cannot be interrupted while it makes one. The result is one JSON object. Exit
// codes: 0 all is well, 1 not, 77 no GPU.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <signal.h>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include "core/clock.h"
#include "core/commit.h"
#include "core/format.h"
#include "trial_rank.h"

namespace switchyard::test {
namespace {

constexpr int kNoGpu = 77;
constexpr std::int64_t kHungMs = 20'000;  // beyond what is allowed: then the trial kills a rank

struct Options {
  int trials = 20;
  double seconds = 0;  ///< 0: no limit
  double slack = 1.0;
  std::uint64_t seed = 1;
  std::int64_t timeout_ms = 2000;
  std::string device = "cpu";
  std::string command;
};

double seconds_of(std::int64_t ns) { return static_cast<double>(ns) * 1e-9; }

std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

bool has_socket(const std::string& name) {
  std::ifstream sockets("/proc/net/unix");
  const std::string all{std::istreambuf_iterator<char>(sockets), {}};
  return all.find(name) != std::string::npos;
}

class Trials {
 public:
  explicit Trials(const Options& options) : options_(options) {
    char pattern[] = "/tmp/switchyard-trials-XXXXXX";
    folder_ = mkdtemp(pattern);
  }
  ~Trials() { std::filesystem::remove_all(folder_); }

  /// False: no GPU.
  bool run() {
    const std::int64_t start_ns = now_ns();
    for (int i = 0; i < options_.trials; ++i) {
      if (options_.seconds > 0 && seconds_of(now_ns() - start_ns) > options_.seconds) break;
      const Trial trial = random_trial(options_.seed * 1'000'003 + static_cast<std::uint64_t>(i),
                                       options_.device, options_.timeout_ms, folder_);
      const std::set<std::string> shared_before = names_in("/dev/shm");
      std::vector<TrialRank> ranks = run_trial(trial);
      if (ranks.front().exit_code == kNoGpu) return false;
      for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
        judge(trial, static_cast<int>(rank), ranks[rank]);
      }
      look_around(trial, ranks.front().pid, shared_before);
      ++num_of_[static_cast<std::size_t>(trial.fault)];
    }
    return true;
  }

  bool is_ok() const { return wrong_ == 0; }

  std::string json() const {
    nlohmann::ordered_json json;
    json["ok"] = is_ok();
    json["command"] = options_.command;
    json["commit"] = build_commit();
    json["device"] = options_.device;
    json["seed"] = options_.seed;
    json["timeout_ms"] = options_.timeout_ms;
    json["trials"] = num_of_[0] + num_of_[1] + num_of_[2];
    json["kills"] = num_of_[static_cast<std::size_t>(Fault::kKill)];
    json["stops"] = num_of_[static_cast<std::size_t>(Fault::kStop)];
    json["late_starts"] = num_of_[static_cast<std::size_t>(Fault::kLate)];
    json["survivors"] = survivors_;
    json["survivors_in_set_up"] = in_set_up_;
    json["slowest_survivor_seconds"] = slowest_;
    json["allowed_seconds"] = allowed();
    json["left_behind"] = left_behind_;
    json["wrong"] = wrong_;
    json["first_failure"] = first_failure_;
    return json.dump(1);
  }

 private:
  double allowed() const {
    return static_cast<double>(options_.timeout_ms) * 1e-3 + options_.slack;
  }

  void judge(const Trial& trial, int number, const TrialRank& rank) {
    if (trial.is_victim(number) && trial.fault == Fault::kKill) return;
    ++survivors_;
    if (rank.report.find(": group: ") != std::string::npos) ++in_set_up_;
    const double seconds = seconds_of(rank.end_ns - rank.since_ns);
    slowest_ = std::max(slowest_, seconds);
    std::string why;
    if (seconds > allowed()) {
      why = fmt::format("it ended {:.2f} s after it could know", seconds);
    } else if (rank.signal != 0) {
      why = fmt::format("signal {}", rank.signal);
    } else if (rank.is_explained()) {
      return;
    } else if (rank.report == kTrialDone && !trial.must_fail()) {
      return;
    } else {
      why = "it is neither done nor has it an error that a peer explains";
    }
    add_failure(trial, fmt::format("rank {}: {}; it reported \"{}\"", number, why, rank.report));
  }

  void look_around(const Trial& trial, pid_t group, const std::set<std::string>& shared_before) {
    std::string what;
    if (kill(-group, 0) == 0) what = "a process";
    if (has_socket(trial.name)) what = "a socket";
    for (const std::string& name : names_in(folder_)) {
      if (name != trial.name) what = "file " + name;
    }
    for (const std::string& name : names_in("/dev/shm")) {
      if (shared_before.count(name) == 0) what = "/dev/shm/" + name;
    }
    std::filesystem::remove(folder_ / trial.name);
    if (what.empty()) return;
    ++left_behind_;
    add_failure(trial, what + " was left behind");
  }

  std::vector<TrialRank> run_trial(const Trial& trial) {
    std::vector<TrialRank> ranks = start(trial);
    if (trial.fault != Fault::kLate) {
      usleep(static_cast<useconds_t>(trial.delay_ms * 1000));
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        if (trial.is_victim(static_cast<int>(i))) kill(ranks[i].pid, trial.signal);
        ranks[i].since_ns = now_ns();
      }
    }
    wait_for(ranks, [&](std::size_t i) {
      return trial.fault != Fault::kStop || !trial.is_victim(static_cast<int>(i));
    });
    for (TrialRank& rank : ranks) {
      if (rank.end_ns != 0) continue;
      rank.since_ns = now_ns();
      kill(rank.pid, SIGCONT);
    }
    wait_for(ranks, [](std::size_t) { return true; });
    return ranks;
  }

  template <typename Wanted>
  void wait_for(std::vector<TrialRank>& ranks, const Wanted& wanted) const {
    const double end = allowed() + seconds_of(kHungMs * 1'000'000);
    bool is_over = false;
    while (!is_over) {
      is_over = true;
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        if (ranks[i].end_ns != 0 || !wanted(i)) continue;
        if (ranks[i].has_ended()) continue;
        is_over = false;
        if (seconds_of(now_ns() - ranks[i].since_ns) > end) kill(ranks[i].pid, SIGKILL);
      }
      if (!is_over) usleep(2000);
    }
  }

  void add_failure(const Trial& trial, const std::string& what) {
    ++wrong_;
    const std::string text = fmt::format("{}: {}", trial.describe(), what);
    if (first_failure_.empty()) first_failure_ = text;
    std::fprintf(stderr, "kill_trials: %s\n", text.c_str());
  }

  const Options& options_;
  std::filesystem::path folder_;
  int num_of_[3] = {0, 0, 0};
  int survivors_ = 0;
  int in_set_up_ = 0;  ///< of them: there was no group yet
  int left_behind_ = 0;
  int wrong_ = 0;
  double slowest_ = 0;
  std::string first_failure_;
};

int run(const Options& options) {
  Trials trials(options);
  if (!trials.run()) {
    std::puts("no CUDA device on this machine");
    return kNoGpu;
  }
  std::puts(trials.json().c_str());
  return trials.is_ok() ? 0 : 1;
}

}  // namespace
}  // namespace switchyard::test

int main(int argc, char** argv) {
  switchyard::test::Options options;
  CLI::App app{"Kills, stops and delays ranks at random moments", "kill_trials"};
  app.add_option("--trials", options.trials, "how many")->check(CLI::Range(1, 1'000'000));
  app.add_option("--seconds", options.seconds, "begin no further trial after this; 0: no limit");
  app.add_option("--seed", options.seed, "of everything that is random");
  app.add_option("--timeout", options.timeout_ms, "of the group, in ms");
  app.add_option("--slack", options.slack, "seconds that a survivor may need beyond the timeout");
  app.add_option("--device", options.device, "cpu or cuda")->check(CLI::IsMember({"cpu", "cuda"}));
  CLI11_PARSE(app, argc, argv);
  options.command = "kill_trials";
  for (int i = 1; i < argc; ++i) options.command += std::string(" ") + argv[i];
  try {
    return switchyard::test::run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kill_trials: %s\n", error.what());
    return 1;
  }
}
