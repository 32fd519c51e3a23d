// SPDX-License-Identifier: Apache-2.0
//
// quant_bench.cpp: one core's rate of the row formats, beside the floor that memory sets: a memcpy
// whose reads and writes together are as many bytes as the format reads and writes (copy_floor.h).
//
// Shapes: 128 x 7168 (a decode batch, in cache) and 8192 x 7168 (a prefill batch, out of cache).

#include <benchmark/benchmark.h>

#include "switchyard/quant.h"

#include "copy_floor.h"
#include "core/random.h"
#include "quant/activation.h"
#include "quant/bf16.h"
#include "quant/rows.h"

namespace switchyard {
namespace {

constexpr std::int64_t kHidden = 7168;

Tensor normal_tensor(DType dtype, std::int64_t num_rows) {
  Tensor x(dtype, {num_rows, kHidden});
  for (std::int64_t i = 0; i < num_rows * kHidden; ++i) {
    // A period that no block divides keeps the set-up short.
    const auto value = static_cast<float>(random_normal(1, static_cast<std::uint64_t>(i % 100003)));
    if (dtype == DType::kBF16) {
      x.as<std::uint16_t>()[i] = bf16_from_f32(value);
    } else {
      x.as<float>()[i] = value;
    }
  }
  return x;
}

void quantize_scheme(benchmark::State& state, const QuantScheme& scheme) {
  const std::int64_t num_rows = state.range(0);
  const Tensor x = normal_tensor(DType::kBF16, num_rows);
  const Tensor q(scheme.dtype, {num_rows, kHidden});
  const bool is_tensor = scheme.group == ScaleGroup::kTensor;
  const DType scale_dtype =
      scheme.scale_format == ScaleFormat::kE8M0Packed ? DType::kI32 : DType::kF32;
  const Tensor scales(scale_dtype,
                      {is_tensor ? 1 : num_rows, is_tensor ? 1 : num_scales(scheme, kHidden)});
  const std::size_t num_bytes =
      x.view().num_bytes() + q.view().num_bytes() + scales.view().num_bytes();
  measure(state, num_bytes, [&] { quantize(x, scheme, q, scales); });
}

void dequantize_block(benchmark::State& state) {
  const std::int64_t num_rows = state.range(0);
  const QuantScheme scheme = schemes::kFp8Block;
  const Tensor x = normal_tensor(DType::kBF16, num_rows);
  const Tensor q(DType::kE4M3, {num_rows, kHidden});
  const Tensor scales(DType::kF32, {num_rows, num_scales(scheme, kHidden)});
  const Tensor y(DType::kF32, {num_rows, kHidden});
  quantize(x, scheme, q, scales);
  const std::size_t num_bytes =
      q.view().num_bytes() + scales.view().num_bytes() + y.view().num_bytes();
  measure(state, num_bytes, [&] {
    for (std::int64_t t = 0; t < num_rows; ++t) {
      dequantize_row(scheme, q.as<std::byte>() + t * kHidden,
                     scales.as<float>() + t * scales.shape(1), DType::kE4M3, kHidden,
                     y.as<float>() + t * kHidden);
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

constexpr QuantScheme kPacked{DType::kE4M3, ScaleGroup::kBlock, 128, ScaleRule::kDivide,
                              ScaleFormat::kE8M0Packed};

void shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgName("rows")->Arg(128)->Arg(8192)->UseManualTime()->Unit(benchmark::kMicrosecond);
}

BENCHMARK_CAPTURE(quantize_scheme, fp8_block, schemes::kFp8Block)->Apply(shapes);
BENCHMARK_CAPTURE(quantize_scheme, fp8_block_deepep, schemes::kFp8BlockDeepEp)->Apply(shapes);
BENCHMARK_CAPTURE(quantize_scheme, fp8_block_e8m0, kPacked)->Apply(shapes);
BENCHMARK_CAPTURE(quantize_scheme, fp8_token, schemes::kFp8Token)->Apply(shapes);
BENCHMARK_CAPTURE(quantize_scheme, fp8_tensor, schemes::kFp8Tensor)->Apply(shapes);
BENCHMARK(dequantize_block)->Apply(shapes);
BENCHMARK(widen_bf16)->Apply(shapes);
BENCHMARK(narrow_bf16)->Apply(shapes);
BENCHMARK(gated_silu)->Apply(shapes);

}  // namespace
}  // namespace switchyard
