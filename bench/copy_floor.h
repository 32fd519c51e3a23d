// SPDX-License-Identifier: Apache-2.0
//
// copy_floor.h: times a body against the floor that memory sets: a memcpy that reads and writes as
// many bytes in total as the body does.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstring>

#include <benchmark/benchmark.h>

#include "core/aligned_buffer.h"

namespace switchyard {

double seconds_of(const auto& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class CopyFloor {
 public:
  explicit CopyFloor(std::size_t num_bytes) : from_(num_bytes / 2), to_(num_bytes / 2) {
    std::memset(from_.data(), 1, from_.size_bytes());
    std::memset(to_.data(), 1, to_.size_bytes());
  }
  void run() {
    std::memcpy(to_.data(), from_.data(), from_.size_bytes());
    benchmark::ClobberMemory();
  }

 private:
  AlignedBuffer from_;
  AlignedBuffer to_;
};

// Times `body`, which moves `num_bytes`, alternating with the floor, so that a busy machine slows
// both. The counters are from the best run of each; "of_floor" is floor time / time. Each runs
// twice in a row, so that caches are warm if they are large enough.
void measure(benchmark::State& state, std::size_t num_bytes, const auto& body) {
  CopyFloor floor(num_bytes);
  double best = 1e9;
  double best_floor = 1e9;
  for (auto _ : state) {
    floor.run();
    best_floor = std::min(best_floor, seconds_of([&] { floor.run(); }));
    body();
    const double seconds = seconds_of(body);
    best = std::min(best, seconds);
    state.SetIterationTime(seconds);
    benchmark::ClobberMemory();
  }
  const auto bytes = static_cast<double>(num_bytes);
  state.counters["GB/s"] = bytes / best * 1e-9;
  state.counters["floor_GB/s"] = bytes / best_floor * 1e-9;
  state.counters["of_floor"] = best_floor / best;
}

}  // namespace switchyard
