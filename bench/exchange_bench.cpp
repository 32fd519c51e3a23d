// SPDX-License-Identifier: Apache-2.0
//
// Dispatch and combine of engines shm and local, compared with two yardsticks from the same run:
// the time that one thread per rank takes to read and write as many bytes as the exchange must
// (MemoryFloor), and Open MPI moving the same de-duplicated rows. One iteration is one call, timed
// on the slowest rank.
//   of_floor  floor / time, both medians     vs_mpi  MPI's time / time, both medians
// Needs memory for the largest shape; shapes over 60 % of what is available are skipped, by name.

#include <array>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include "exchange_case.h"

namespace switchyard::bench {
namespace {

using Times = std::map<std::string, std::vector<double>>;

std::string folder;  // this program's folder, which also contains the jobs

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Times read_lines(const std::string& command) {
  Times times;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return times;
  std::array<char, 65536> line{};
  while (std::fgets(line.data(), static_cast<int>(line.size()), pipe) != nullptr) {
    std::istringstream words(line.data());
    std::string name;
    words >> name;
    for (double value = 0; words >> value;) times[name].push_back(value);
  }
  pclose(pipe);
  return times;
}

std::string joined(const ExchangeCase& test) {
  std::string text;
  for (const std::string& argument : test.arguments()) text += " " + argument;
  return text;
}

std::string command_of(const ExchangeCase& test) {
  const std::string job = folder + "/exchange_job" + joined(test);
  if (test.engine == "shm") {
    return fmt::format("{}/exchange_launch {} {}", folder, test.num_ranks, job);
  }
  if (test.engine != "mpi") return job;
  return fmt::format(
      "mpirun --allow-run-as-root --oversubscribe --bind-to none -n {} {}/mpi_job{} 2>/dev/null",
      test.num_ranks, folder, joined(test));
}

// The baseline moves the same rows, so it exists for bf16 and per_rank. Layouts do not affect it.
bool has_baseline(const ExchangeCase& test) {
  return test.scheme == "none" && test.reduce == Reduce::kPerRank;
}

// Alternates a shape and its baseline several times, because a shared machine's speed changes from
// minute to minute, for both. The medians are over all rounds.
const Times& measured(const ExchangeCase& test) {
  constexpr int kRounds = 3;
  static std::map<std::string, Times> results;
  const auto [place, is_new] = results.try_emplace(joined(test));
  if (!is_new) return place->second;
  Times& times = place->second;
  const auto add = [&](const std::string& prefix, const Times& more) {
    for (const auto& [name, values] : more) {
      std::vector<double>& all = times[prefix + name];
      all.insert(all.end(), values.begin(), values.end());
    }
  };
  ExchangeCase baseline = test;
  baseline.engine = "mpi";
  for (int round = 0; round < kRounds; ++round) {
    add("", read_lines(command_of(test)));
    if (has_baseline(test)) add("mpi_", read_lines(command_of(baseline)));
  }
  return times;
}

void report(benchmark::State& state, const ExchangeCase& test, const std::string& operation) {
  const Times& times = measured(test);
  const auto found = times.find(operation);
  if (found == times.end()) {
    state.SkipWithError("the job printed no times");
    return;
  }
  std::size_t next = 0;
  for (auto _ : state) state.SetIterationTime(found->second[next++ % found->second.size()] * 1e-6);
  const double us = median(found->second);
  const auto [fastest, slowest] = std::minmax_element(found->second.begin(), found->second.end());
  state.counters["median_us"] = us;
  state.counters["min_us"] = *fastest;
  state.counters["max_us"] = *slowest;
  state.counters["us_per_token"] = us / static_cast<double>(test.num_tokens);
  state.counters["bytes_read"] = times.at(operation + "_read")[0];
  state.counters["bytes_written"] = times.at(operation + "_written")[0];
  state.counters["floor_us"] = median(times.at(operation + "_floor"));
  state.counters["of_floor"] = median(times.at(operation + "_floor")) / us;
  const auto mpi = times.find("mpi_" + operation);
  if (mpi == times.end()) return;
  state.counters["mpi_us"] = median(mpi->second);
  state.counters["vs_mpi"] = median(mpi->second) / us;
}

std::int64_t available_bytes() {
  std::ifstream meminfo("/proc/meminfo");
  for (std::string name; meminfo >> name;) {
    std::int64_t kib = 0;
    meminfo >> kib;
    if (name == "MemAvailable:") return kib * 1024;
    meminfo.ignore(64, '\n');
  }
  return 0;
}

// Memory that all ranks touch: tokens, output, rows in windows, received rows, floor buffers.
std::int64_t needed_bytes(const ExchangeCase& test) {
  const std::int64_t row = test.hidden * 2;
  const std::int64_t tokens = test.num_ranks * test.num_tokens;
  const std::int64_t columns = std::min(test.num_ranks, test.num_topk);
  const std::int64_t exchange = tokens * row * (2 + 2 * columns + test.num_topk);
  const std::int64_t floor = 2 * tokens * row * (1 + test.num_topk);
  return exchange + floor;
}

std::vector<ExchangeCase> cases() {
  std::vector<ExchangeCase> list;
  for (const char* engine : {"shm", "local"}) {
    for (const Layout layout : {Layout::kBatched, Layout::kExpanded}) {
      for (const int num_ranks : {2, 4, 8}) {
        for (const int num_tokens : {1, 32, 128}) {
          list.push_back({.engine = engine,
                          .num_ranks = num_ranks,
                          .num_tokens = num_tokens,
                          .layout = layout});
        }
      }
    }
    for (const int num_tokens : {2048, 4096, 8192}) {
      list.push_back({.engine = engine, .num_ranks = 2, .num_tokens = num_tokens});
    }
  }
  for (const int num_tokens : {128, 4096}) {
    list.push_back({.num_ranks = 2, .num_tokens = num_tokens, .scheme = "fp8_block"});
    list.push_back({.num_ranks = 2, .num_tokens = num_tokens, .reduce = Reduce::kPerExpert});
  }
  return list;
}

void register_all() {
  const std::int64_t available = available_bytes();
  for (const ExchangeCase& test : cases()) {
    const std::string shape =
        fmt::format("{}/{}/{}/{}/ranks:{}/tokens:{}", test.engine, name_of(test.layout),
                    test.scheme, name_of(test.reduce), test.num_ranks, test.num_tokens);
    const std::int64_t needed = needed_bytes(test);
    const bool fits = needed < available / 10 * 6;
    std::cerr << fmt::format("{:<60} {:>7.1f} MiB{}\n", shape,
                             static_cast<double>(needed) / (1 << 20),
                             fits ? "" : "  left out: over 60 % of the available memory");
    if (!fits) continue;
    for (const char* operation : {"dispatch", "combine"}) {
      benchmark::RegisterBenchmark(
          (std::string(operation) + "/" + shape).c_str(),
          [test, operation](benchmark::State& state) { report(state, test, operation); })
          ->Iterations(test.num_runs)
          ->UseManualTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

}  // namespace
}  // namespace switchyard::bench

int main(int argc, char** argv) {
  switchyard::bench::folder =
      std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
  switchyard::bench::register_all();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
