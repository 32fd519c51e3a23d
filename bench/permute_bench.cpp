// SPDX-License-Identifier: Apache-2.0
//
// permute_bench.cpp: the rate of permute and unpermute on one core, compared with the floor that
// memory sets (copy_floor.h). Bytes are those that must move: permute reads a row once and writes
// it once per expert; unpermute reads each expert row once and writes the sum.
//
// Shapes: T x 7168, 8 of 64 experts; 64 tokens (a decode batch, in cache) and 4096 (out of cache).
// "owned" is the number of experts on this rank: with 8, a token has one expert here on average.

#include <vector>

#include <benchmark/benchmark.h>

#include "switchyard/permute.h"

#include "copy_floor.h"
#include "core/random.h"

namespace switchyard {
namespace {

constexpr std::int64_t kHidden = 7168;
constexpr std::int32_t kExperts = 64;
constexpr std::int64_t kTopk = 8;

// Distinct random experts per token. A rank that owns `num_local` of them sees the others as -1.
Tensor random_ids(std::int64_t num_tokens, std::int64_t num_local) {
  Tensor ids(DType::kI32, {num_tokens, kTopk});
  std::uint64_t counter = 0;
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    std::uint64_t seen = 0;
    for (std::int64_t k = 0; k < kTopk;) {
      const std::uint64_t id = random_bits(1, counter++) % kExperts;
      if ((seen >> id & 1) != 0) continue;
      seen |= std::uint64_t{1} << id;
      const auto local = static_cast<std::int32_t>(id);
      ids.as<std::int32_t>()[t * kTopk + k++] = local < num_local ? local : -1;
    }
  }
  return ids;
}

// Memory that has been written once, so that no page fault is measured.
Tensor touched(DType dtype, std::initializer_list<std::int64_t> shape) {
  Tensor tensor(dtype, shape);
  std::memset(tensor.data(), 1, tensor.view().num_bytes());
  return tensor;
}

struct Shape {
  std::int64_t num_tokens;
  std::int32_t num_local;
  Tensor ids;
  PermutePlan plan;
  std::int64_t num_copies = 0;   ///< rows for all experts together
  std::int64_t num_sources = 0;  ///< tokens with an expert on this rank

  explicit Shape(const benchmark::State& state)
      : num_tokens(state.range(0)),
        num_local(static_cast<std::int32_t>(state.range(1))),
        ids(random_ids(num_tokens, num_local)),
        plan(plan_permute(ids, num_local)) {
    for (std::int64_t t = 0; t < num_tokens; ++t) {
      std::int64_t copies = 0;
      for (std::int64_t k = 0; k < kTopk; ++k) copies += ids.as<std::int32_t>()[t * kTopk + k] >= 0;
      num_copies += copies;
      num_sources += copies > 0;
    }
  }
};

std::size_t bytes(std::int64_t num_rows, DType dtype) {
  return static_cast<std::size_t>(num_rows * kHidden * bits_of(dtype) / 8);
}

void plan_only(benchmark::State& state) {
  const Shape shape(state);
  for (auto _ : state) benchmark::DoNotOptimize(plan_permute(shape.ids, shape.num_local));
}

void scatter(benchmark::State& state, DType dtype, std::int64_t scale_block) {
  const Shape shape(state);
  const std::int64_t num_rows = shape.plan.num_rows();
  const Tensor x = touched(dtype, {shape.num_tokens, kHidden});
  const Tensor out = touched(dtype, {num_rows, kHidden});
  const Tensor m_indices(DType::kI32, {num_rows});
  const Tensor inv_perm(DType::kI32, {shape.num_tokens, kTopk});
  const Tensor first_row(DType::kI64, {shape.num_local});
  ScatterOutputs outputs{out, {}, m_indices, inv_perm, first_row};
  Tensor scales;
  Tensor scale_memory;
  if (scale_block > 0) {  // f32, to column-major as DeepGEMM wants them
    const std::int64_t num_scales = kHidden / scale_block;
    scales = touched(DType::kF32, {shape.num_tokens, num_scales});
    scale_memory = touched(DType::kF32, {num_scales, num_rows});
    outputs.scales =
        TensorView(scale_memory.data(), DType::kF32, {num_rows, num_scales}, {1, num_rows});
  }
  const std::size_t scale_bytes =
      scale_block > 0
          ? bytes(shape.num_sources + num_rows, DType::kF32) / static_cast<std::size_t>(scale_block)
          : 0;
  measure(state, bytes(shape.num_sources + shape.num_copies, dtype) + scale_bytes, [&] {
    ep_scatter(x, scale_block > 0 ? scales.view() : TensorView(), shape.ids, {}, outputs);
  });
}

void gather(benchmark::State& state, DType dtype) {
  const Shape shape(state);
  const Tensor rows = touched(dtype, {shape.plan.num_rows(), kHidden});
  const Tensor weights = touched(DType::kF32, {shape.num_tokens, kTopk});
  const Tensor out = touched(dtype, {shape.num_tokens, kHidden});
  measure(state, bytes(shape.num_copies + shape.num_tokens, dtype),
          [&] { unpermute_and_reduce(rows, shape.plan, weights, out); });
}

void shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"tokens", "owned"})->Args({64, 64})->Args({4096, 64})->Args({4096, 8});
  bench->Unit(benchmark::kMicrosecond);
}
void timed(benchmark::internal::Benchmark* bench) {
  shapes(bench);
  bench->UseManualTime();
}

BENCHMARK(plan_only)->Apply(shapes);
BENCHMARK_CAPTURE(scatter, bf16, DType::kBF16, 0)->Apply(timed);
BENCHMARK_CAPTURE(scatter, e4m3, DType::kE4M3, 0)->Apply(timed);
BENCHMARK_CAPTURE(scatter, e4m3_and_scales, DType::kE4M3, 128)->Apply(timed);
BENCHMARK_CAPTURE(gather, bf16, DType::kBF16)->Apply(timed);
BENCHMARK_CAPTURE(gather, f32, DType::kF32)->Apply(timed);

}  // namespace
}  // namespace switchyard
