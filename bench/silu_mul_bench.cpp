// SPDX-License-Identifier: Apache-2.0
//
// silu_mul_bench.cpp: the rate of the fused gated activation and quantization, and of the relayout
// of scales, on one core, compared with a memcpy that moves as many bytes (reads and writes
// together). The counter "of_floor" is floor time / time, each from its best run.
//
// Shapes: gate and up of 2048 elements each, 64 rows (in cache) and 8192 rows (out of cache).

#include <algorithm>
#include <chrono>
#include <cstring>

#include <benchmark/benchmark.h>

#include "switchyard/quantize_batched.h"
#include "switchyard/scale_layout.h"

#include "core/aligned_buffer.h"
#include "core/random.h"
#include "quant/bf16.h"

namespace switchyard {
namespace {

constexpr std::int64_t kIntermediate = 2048;

double seconds_of(const auto& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Alternates with the floor, so that a busy machine slows both.
void measure(benchmark::State& state, std::size_t num_bytes, const auto& body) {
  const AlignedBuffer from(num_bytes / 2);
  const AlignedBuffer to(num_bytes / 2);
  std::memset(from.data(), 1, from.size_bytes());
  std::memset(to.data(), 1, to.size_bytes());
  double best = 1e9;
  double best_floor = 1e9;
  for (auto _ : state) {
    best_floor = std::min(best_floor, seconds_of([&] {
                            std::memcpy(to.data(), from.data(), from.size_bytes());
                            benchmark::ClobberMemory();
                          }));
    const double seconds = seconds_of(body);
    best = std::min(best, seconds);
    state.SetIterationTime(seconds);
    benchmark::ClobberMemory();
  }
  state.counters["GB/s"] = static_cast<double>(num_bytes) / best * 1e-9;
  state.counters["of_floor"] = best_floor / best;
}

void silu_mul(benchmark::State& state, const QuantScheme& scheme, ActivationScale rule) {
  const std::int64_t num_rows = state.range(0);
  const Tensor x(DType::kBF16, {num_rows, 2 * kIntermediate});
  for (std::int64_t i = 0; i < x.view().num_elements(); ++i) {
    const auto at = static_cast<std::uint64_t>(i % 100003);  // repeating keeps the set-up short
    x.as<std::uint16_t>()[i] = bf16_from_f32(static_cast<float>(random_normal(1, at)));
  }
  const Tensor q(scheme.dtype, {num_rows, kIntermediate});
  const OwnedScales scales = make_scales(scale_dtype(scheme), ScaleLayout::kColumnMajorAligned,
                                         num_rows, num_scales(scheme, kIntermediate));
  measure(state, x.view().num_bytes() + q.view().num_bytes() + scales.memory.view().num_bytes(),
          [&] { silu_mul_quantize(x, scheme, q, scales.view, rule); });
}

void swizzle(benchmark::State& state) {
  const std::int64_t num_rows = state.range(0);
  constexpr std::int64_t kScales = 448;  // nvfp4, 7168 elements
  const Tensor rows(DType::kE4M3, {num_rows, kScales});
  const OwnedScales tiles = make_scales(DType::kE4M3, ScaleLayout::kSwizzled, num_rows, kScales);
  measure(state, rows.view().num_bytes() + tiles.memory.view().num_bytes(),
          [&] { relayout_scales(rows, tiles.view); });
}

void shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgName("rows")->Arg(64)->Arg(8192)->UseManualTime()->Unit(benchmark::kMicrosecond);
}

BENCHMARK_CAPTURE(silu_mul, fp8_block, schemes::kFp8Block, ActivationScale::kScheme)->Apply(shapes);
BENCHMARK_CAPTURE(silu_mul, fp8_fused, schemes::kFp8Block, ActivationScale::kFused)->Apply(shapes);
BENCHMARK_CAPTURE(silu_mul, ue8m0_fused, schemes::kFp8Ue8m0, ActivationScale::kFused)
    ->Apply(shapes);
BENCHMARK(swizzle)->Apply(shapes);

}  // namespace
}  // namespace switchyard
