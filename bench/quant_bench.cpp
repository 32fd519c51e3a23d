// SPDX-License-Identifier: Apache-2.0
//
// quant_bench.cpp: the rate of the row formats on one core, compared with the floor that memory
// sets: a memcpy that reads and writes as many bytes in total as the format does (copy_floor.h).
//
// Shapes: 128 x 7168 (a decode batch, in cache) and 8192 x 7168 (a prefill batch, out of cache).

#include <benchmark/benchmark.h>

#include "switchyard/quant.h"

#include "copy_floor.h"
#include "core/random.h"
#include "quant/activation.h"
#include "quant/bf16.h"
#include "quant/rows.h"
#include "quant/scheme.h"

namespace switchyard {
namespace {

constexpr std::int64_t kHidden = 7168;

Tensor normal_tensor(DType dtype, std::int64_t num_rows) {
  Tensor x(dtype, {num_rows, kHidden});
  for (std::int64_t i = 0; i < num_rows * kHidden; ++i) {
    // Repeating values keep the set-up short; no block divides the period.
    const auto value = static_cast<float>(random_normal(1, static_cast<std::uint64_t>(i % 100003)));
    if (dtype == DType::kBF16) {
      x.as<std::uint16_t>()[i] = bf16_from_f32(value);
    } else {
      x.as<float>()[i] = value;
    }
  }
  return x;
}

// About 448 * 6 / the largest magnitude of normal_tensor.
constexpr float kGlobalScale = 600.0f;

// Elements and scales of a scheme, for `num_rows` rows of bf16.
struct Stored {
  Tensor q;
  Tensor scales;

  Stored(const QuantScheme& scheme, std::int64_t num_rows)
      : q(stored_dtype(scheme), {num_rows, kHidden}),
        scales(scale_dtype(scheme),
               {scheme.group == ScaleGroup::kTensor ? 1 : num_rows, num_scales(scheme, kHidden)}) {}
  std::size_t num_bytes() const { return q.view().num_bytes() + scales.view().num_bytes(); }
};

TensorView global_scale(const QuantScheme& scheme) {
  return scheme.needs_tensor_scale() ? TensorView::of(&kGlobalScale, {1}) : TensorView{};
}

void quantize_scheme(benchmark::State& state, const QuantScheme& scheme) {
  const Tensor x = normal_tensor(DType::kBF16, state.range(0));
  const Stored to(scheme, state.range(0));
  measure(state, x.view().num_bytes() + to.num_bytes(),
          [&] { quantize(x, scheme, to.q, to.scales, Stream::host(), global_scale(scheme)); });
}

void dequantize_scheme(benchmark::State& state, const QuantScheme& scheme) {
  const std::int64_t num_rows = state.range(0);
  const Tensor x = normal_tensor(DType::kBF16, num_rows);
  const Stored from(scheme, num_rows);
  const Tensor y(DType::kF32, {num_rows, kHidden});
  quantize(x, scheme, from.q, from.scales, Stream::host(), global_scale(scheme));
  const auto row_stride = static_cast<std::int64_t>(row_bytes(scheme, kHidden));
  const auto scale_stride = static_cast<std::int64_t>(scale_row_bytes(scheme, kHidden));
  measure(state, from.num_bytes() + y.view().num_bytes(), [&] {
    for (std::int64_t t = 0; t < num_rows; ++t) {
      dequantize_row(scheme, from.q.as<std::byte>() + t * row_stride,
                     from.scales.as<std::byte>() + t * scale_stride, DType::kBF16, kHidden,
                     y.as<float>() + t * kHidden, kGlobalScale);
    }
  });
}

void widen_bf16(benchmark::State& state) {
  const Tensor x = normal_tensor(DType::kBF16, state.range(0));
  const Tensor y(DType::kF32, {state.range(0), kHidden});
  const std::int64_t count = x.view().num_elements();
  measure(state, x.view().num_bytes() + y.view().num_bytes(),
          [&] { bf16_to_f32(x.as<std::uint16_t>(), count, y.as<float>()); });
}

void narrow_bf16(benchmark::State& state) {
  const Tensor x = normal_tensor(DType::kF32, state.range(0));
  const Tensor y(DType::kBF16, {state.range(0), kHidden});
  const std::int64_t count = x.view().num_elements();
  measure(state, x.view().num_bytes() + y.view().num_bytes(),
          [&] { f32_to_bf16(x.as<float>(), count, y.as<std::uint16_t>()); });
}

void gated_silu(benchmark::State& state) {
  const Tensor gate = normal_tensor(DType::kF32, state.range(0));
  const Tensor up = normal_tensor(DType::kF32, state.range(0));
  const Tensor y(DType::kF32, {state.range(0), kHidden});
  const std::int64_t count = gate.view().num_elements();
  measure(state, 3 * gate.view().num_bytes(),
          [&] { silu_mul(gate.as<float>(), up.as<float>(), count, y.as<float>()); });
}

void shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgName("rows")->Arg(128)->Arg(8192)->UseManualTime()->Unit(benchmark::kMicrosecond);
}

BENCHMARK_CAPTURE(quantize_scheme, fp8_block, schemes::kFp8Block)->Apply(shapes);
BENCHMARK_CAPTURE(quantize_scheme, fp8_block_deepep, schemes::kFp8BlockDeepEp)->Apply(shapes);
BENCHMARK_CAPTURE(quantize_scheme, fp8_ue8m0, schemes::kFp8Ue8m0)->Apply(shapes);
BENCHMARK_CAPTURE(quantize_scheme, fp8_token, schemes::kFp8Token)->Apply(shapes);
BENCHMARK_CAPTURE(quantize_scheme, fp8_tensor, schemes::kFp8Tensor)->Apply(shapes);
BENCHMARK_CAPTURE(quantize_scheme, int8_token, schemes::kInt8Token)->Apply(shapes);
BENCHMARK_CAPTURE(quantize_scheme, int8_tensor, schemes::kInt8Tensor)->Apply(shapes);
BENCHMARK_CAPTURE(quantize_scheme, int8_block, schemes::kInt8Block)->Apply(shapes);
BENCHMARK_CAPTURE(quantize_scheme, nvfp4, schemes::kNvfp4)->Apply(shapes);
BENCHMARK_CAPTURE(quantize_scheme, mxfp4, schemes::kMxfp4)->Apply(shapes);
BENCHMARK_CAPTURE(quantize_scheme, mxfp6_e3m2, schemes::kMxfp6E3M2)->Apply(shapes);
BENCHMARK_CAPTURE(quantize_scheme, mxfp6_e2m3, schemes::kMxfp6E2M3)->Apply(shapes);
BENCHMARK_CAPTURE(quantize_scheme, mxfp8, schemes::kMxfp8)->Apply(shapes);
BENCHMARK_CAPTURE(dequantize_scheme, fp8_block, schemes::kFp8Block)->Apply(shapes);
BENCHMARK_CAPTURE(dequantize_scheme, int8_block, schemes::kInt8Block)->Apply(shapes);
BENCHMARK_CAPTURE(dequantize_scheme, nvfp4, schemes::kNvfp4)->Apply(shapes);
BENCHMARK_CAPTURE(dequantize_scheme, mxfp4, schemes::kMxfp4)->Apply(shapes);
BENCHMARK_CAPTURE(dequantize_scheme, mxfp8, schemes::kMxfp8)->Apply(shapes);
BENCHMARK(widen_bf16)->Apply(shapes);
BENCHMARK(narrow_bf16)->Apply(shapes);
BENCHMARK(gated_silu)->Apply(shapes);

}  // namespace
}  // namespace switchyard
