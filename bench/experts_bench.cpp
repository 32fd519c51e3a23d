// SPDX-License-Identifier: Apache-2.0
//
// experts_bench.cpp: the rate of the expert MLP on one core, by kind of experts and rows per
// expert, compared with the core's measured fma peak. Counter "flops": 6 * H * I operations per
// row; "of_peak": its share of the peak.
//
// H = 1024, I = 512: the weights of an expert are 3 MiB in bf16. One expert is multiplied
// repeatedly, so its weights come from a cache; "cold" cycles through 64 experts, so that weights
// come from memory.

#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "switchyard/experts.h"

#include "core/aligned_buffer.h"
#include "core/random.h"
#include "fma_peak.h"
#include "quant/scalar.h"

namespace switchyard {
namespace {

constexpr std::int64_t kHidden = 1024;
constexpr std::int64_t kIntermediate = 512;

Tensor random_tensor(DType dtype, std::int64_t a, std::int64_t b, std::int64_t c) {
  Tensor tensor(dtype, {a, b, c});
  for (std::int64_t i = 0; i < a * b * c; ++i) {
    // Repeating values keep the set-up short; no size divides the period.
    const double x = random_normal(1, static_cast<std::uint64_t>(i % 100003));
    scalar::store(tensor.data(), dtype, i, static_cast<float>(x / 32));
  }
  return tensor;
}

void run_experts(benchmark::State& state, const std::string& name, DType dtype, bool is_cold) {
  const std::int64_t rows_each = state.range(0);
  const std::int64_t num_experts = is_cold ? 64 : 1;
  const Tensor gate = random_tensor(dtype, num_experts, kIntermediate, kHidden);
  const Tensor up = random_tensor(dtype, num_experts, kIntermediate, kHidden);
  const Tensor down = random_tensor(dtype, num_experts, kHidden, kIntermediate);
  const auto experts = make_experts(name, {gate, up, down, {}, {}, {}});
  const std::int64_t total = rows_each * num_experts;
  const Tensor rows = random_tensor(DType::kBF16, 1, total, kHidden);
  const TensorView x(rows.data(), DType::kBF16, {total, kHidden});
  const Tensor y(DType::kBF16, {total, kHidden});
  std::vector<std::int64_t> first_row;
  for (std::int64_t e = 0; e < num_experts; ++e) first_row.push_back(e * rows_each);
  const std::vector<std::int32_t> num_rows(static_cast<std::size_t>(num_experts),
                                           static_cast<std::int32_t>(rows_each));
  const AlignedBuffer workspace(experts->workspace_bytes(total));
  for (auto _ : state) {
    experts->apply({x, {}, schemes::kNone, first_row, num_rows}, y,
                   {workspace.data(), workspace.size_bytes()});
  }
  const double flops = 6.0 * static_cast<double>(total * kHidden * kIntermediate);
  using benchmark::Counter;
  state.counters["flops"] = Counter(flops, Counter::kIsIterationInvariantRate);
  state.counters["of_peak"] = Counter(flops / peak_fma_rate(), Counter::kIsIterationInvariantRate);
}

#define SWITCHYARD_EXPERTS_BENCH(label, name, dtype, is_cold) \
  BENCHMARK_CAPTURE(run_experts, label, name, dtype, is_cold) \
      ->Arg(1)                                                \
      ->Arg(4)                                                \
      ->Arg(13)                                               \
      ->Arg(64)                                               \
      ->Arg(256)                                              \
      ->Unit(benchmark::kMicrosecond)

SWITCHYARD_EXPERTS_BENCH(exact_bf16, "exact", DType::kBF16, false);
SWITCHYARD_EXPERTS_BENCH(exact_f32, "exact", DType::kF32, false);
SWITCHYARD_EXPERTS_BENCH(exact_bf16_cold, "exact", DType::kBF16, true);
SWITCHYARD_EXPERTS_BENCH(onednn_bf16, "onednn", DType::kBF16, false);
SWITCHYARD_EXPERTS_BENCH(onednn_f32, "onednn", DType::kF32, false);
SWITCHYARD_EXPERTS_BENCH(onednn_bf16_cold, "onednn", DType::kBF16, true);

}  // namespace
}  // namespace switchyard
