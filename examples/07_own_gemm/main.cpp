// SPDX-License-Identifier: Apache-2.0
//
// Experts built around a GEMM of your own. Tokens are quantized to fp8 and dispatched in layout
// batched, with scales in columns that start at multiples of 16 bytes, as TMA requires; OwnExperts
// multiplies them without conversion by fp8 weights. The library's "exact" experts, given the same
// rows, check the result. One rank on one GPU.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cuda_runtime_api.h>
#include <span>
#include <stdexcept>
#include <vector>

#include "masked_gemm.h"

#include <switchyard/exchange.h>
#include <switchyard/experts.h>
#include <switchyard/quantize_batched.h>
#include <switchyard/scale_layout.h>

namespace sy = switchyard;

namespace {

constexpr std::int64_t kExperts = 4;
constexpr std::int64_t kTokens = 200;
constexpr std::int64_t kTopk = 2;
constexpr std::int64_t kHidden = 512;
constexpr std::int64_t kIntermediate = 256;
constexpr std::int64_t kBlock = 128;

void check_cuda(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

constexpr sy::Device kGpu = sy::Device::cuda(0);

/// A copy on the GPU.
template <typename T>
sy::Tensor on_gpu(const std::vector<T>& values) {
  return sy::copy_to(sy::TensorView::of(values.data(), {static_cast<std::int64_t>(values.size())}),
                     kGpu);
}

/// Pseudo-random numbers from -1 to 1.
float noise(std::uint32_t i) {
  std::uint32_t x = i * 2654435761u + 12345u;
  x = (x ^ x >> 15) * 2246822519u;
  x = (x ^ x >> 13) * 3266489917u;
  return static_cast<float>((x ^ x >> 16) >> 8) * 0x1p-23f - 1.0f;
}

std::uint16_t bf16_of(float x) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(x) >> 16);
}

/// fp8 matrices [experts, outputs, depth], with one scale per 128 x 128 elements.
struct Fp8Matrix {
  std::int64_t outputs;
  std::int64_t depth;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;

  Fp8Matrix(std::int64_t num_outputs, std::int64_t num_inputs, std::uint32_t seed)
      : outputs(num_outputs), depth(num_inputs) {
    for (std::int64_t i = 0; i < kExperts * outputs * depth; ++i) {
      const float value = noise(seed + static_cast<std::uint32_t>(i));
      // Magnitudes from 2^-3 to 2 in steps of the format, of either sign.
      const auto code = static_cast<std::uint8_t>(0x20 + std::abs(value) * 0x20);
      codes.push_back(value < 0 ? code | 0x80 : code);
    }
    for (std::int64_t i = 0; i < kExperts * (outputs / kBlock) * (depth / kBlock); ++i) {
      scales.push_back((1.0f + 0.5f * noise(seed + 77u + static_cast<std::uint32_t>(i))) /
                       std::sqrt(static_cast<float>(depth)));
    }
  }

  sy::TensorView values(std::int64_t first, std::int64_t count) const {
    return {codes.data() + first * depth,
            sy::DType::kE4M3,
            {kExperts, count, depth},
            {outputs * depth, depth, 1}};
  }
  sy::TensorView scale_view(std::int64_t first, std::int64_t count) const {
    const std::int64_t across = depth / kBlock;
    return {scales.data() + first / kBlock * across,
            sy::DType::kF32,
            {kExperts, count / kBlock, across},
            {outputs / kBlock * across, across, 1}};
  }
};

/// The same weights in the library's form: gate and up are halves of one tensor.
sy::ExpertWeights library_weights(const Fp8Matrix& gate_up, const Fp8Matrix& down) {
  sy::ExpertWeights weights;
  weights.gate = gate_up.values(0, kIntermediate);
  weights.up = gate_up.values(kIntermediate, kIntermediate);
  weights.down = down.values(0, kHidden);
  weights.gate_scale = gate_up.scale_view(0, kIntermediate);
  weights.up_scale = gate_up.scale_view(kIntermediate, kIntermediate);
  weights.down_scale = down.scale_view(0, kHidden);
  return weights;
}

class OwnExperts final : public sy::Experts {
 public:
  OwnExperts(const Fp8Matrix& gate_up, const Fp8Matrix& down)
      : gate_up_(on_gpu(gate_up.codes)),
        gate_up_scales_(on_gpu(gate_up.scales)),
        down_(on_gpu(down.codes)),
        down_scales_(on_gpu(down.scales)) {}

  std::string_view name() const override { return "own"; }
  sy::Device device() const override { return kGpu; }
  bool is_batch_invariant() const override { return true; }
  bool is_capturable(bool) const override { return true; }

  std::size_t workspace_bytes(const sy::TensorView& rows) const override {
    return carve(rows.shape(1), nullptr).bytes;
  }

  void apply(const sy::ExpertRows& input, const sy::TensorView& output,
             std::span<std::byte> workspace, sy::Stream stream) override {
    const std::int64_t capacity = input.rows.shape(1);
    const Scratch scratch = carve(capacity, workspace.data());
    const sy::TensorView sums(scratch.sums, sy::DType::kF32,
                              {kExperts, capacity, 2 * kIntermediate}, kGpu);
    const sy::TensorView codes(scratch.codes, sy::DType::kE4M3, {kExperts, capacity, kIntermediate},
                               kGpu);
    multiply(input.rows, input.scales, gate_up_, gate_up_scales_, input.num_rows, sums, stream);
    sy::silu_mul_quantize_batched(sums, input.num_rows, sy::schemes::kFp8Block, codes,
                                  scratch.scales, stream);
    multiply(codes, scratch.scales, down_, down_scales_, input.num_rows, output, stream);
  }

 private:
  struct Scratch {
    std::byte* sums;
    std::byte* codes;
    sy::TensorView scales;
    std::size_t bytes;
  };

  static Scratch carve(std::int64_t capacity, std::byte* base) {
    const std::int64_t sums = kExperts * capacity * 2 * kIntermediate * 4;
    const std::int64_t codes = kExperts * capacity * kIntermediate;
    const std::int64_t blocks = kIntermediate / kBlock;
    const std::int64_t elements =
        sy::num_scale_elements(sy::ScaleLayout::kColumnMajorAligned, capacity, blocks);
    const std::int64_t column = elements / blocks;
    std::byte* scales = base == nullptr ? nullptr : base + sums + codes;
    return {base, base == nullptr ? nullptr : base + sums,
            sy::TensorView(scales, sy::DType::kF32, {kExperts, capacity, blocks},
                           {elements, 1, column}, kGpu),
            static_cast<std::size_t>(sums + codes + kExperts * elements * 4)};
  }

  static void multiply(const sy::TensorView& x, const sy::TensorView& x_scales, const sy::Tensor& w,
                       const sy::Tensor& w_scales, const sy::TensorView& num_rows,
                       const sy::TensorView& out, sy::Stream stream) {
    // A TMA descriptor of the scales needs contiguous rows and 16-byte aligned columns.
    if (x_scales.stride(1) != 1 || x_scales.stride(2) % 4 != 0 || x_scales.stride(0) % 4 != 0) {
      throw std::invalid_argument("scales are not by aligned columns");
    }
    check_cuda(launch_masked_gemm(
        {x.as<const std::uint8_t>(), x_scales.as<const float>(), x_scales.stride(0),
         x_scales.stride(2), w.as<const std::uint8_t>(), w_scales.as<const float>(),
         num_rows.as<const std::int32_t>(), out.data(), out.dtype() == sy::DType::kBF16,
         static_cast<int>(kExperts), static_cast<int>(x.shape(1)), static_cast<int>(out.shape(2)),
         static_cast<int>(x.shape(2))},
        stream.get()));
  }

  sy::Tensor gate_up_;
  sy::Tensor gate_up_scales_;
  sy::Tensor down_;
  sy::Tensor down_scales_;
};

/// Runs one layer with `experts`; returns the combined results, f32 [T, H], on the host.
sy::Tensor run_layer(const sy::Group& group, sy::Experts& experts) {
  cudaStream_t own_stream{};
  check_cuda(cudaStreamCreateWithFlags(&own_stream, cudaStreamNonBlocking));
  const sy::Stream stream = sy::Stream::cuda(own_stream, kGpu.index);
  sy::ExchangeConfig config{.num_experts = kExperts,
                            .num_topk = kTopk,
                            .hidden = kHidden,
                            .max_tokens_per_rank = kTokens,
                            .layout = sy::Layout::kBatched,
                            .scheme = sy::schemes::kFp8Block,
                            .scale_layout = sy::ScaleLayout::kColumnMajorAligned};
  sy::Exchange exchange(group, config, {.device = kGpu});
  std::vector<std::uint16_t> values;
  std::vector<std::int32_t> chosen;
  for (std::uint32_t i = 0; i < kTokens * kHidden; ++i) values.push_back(bf16_of(noise(i)));
  // Every token chooses expert 0 and one of the other three.
  for (std::int32_t t = 0; t < kTokens; ++t) chosen.insert(chosen.end(), {0, 1 + t % 3});
  const std::vector<float> halves(kTokens * kTopk, 0.5f);
  const sy::Tensor tokens =
      sy::copy_to(sy::TensorView(values.data(), sy::DType::kBF16, {kTokens, kHidden}), kGpu);
  const sy::Tensor ids = sy::copy_to(sy::TensorView::of(chosen.data(), {kTokens, kTopk}), kGpu);
  const sy::Tensor weights = sy::copy_to(sy::TensorView::of(halves.data(), {kTokens, kTopk}), kGpu);
  const sy::Tensor output(sy::DType::kF32, {kTokens, kHidden}, kGpu);

  const sy::Dispatched received = exchange.dispatch(tokens, ids, weights, stream);
  const sy::TensorView& rows = received.experts.rows;  // e4m3 [L, C, H]
  const sy::Tensor results(sy::DType::kBF16, {rows.shape(0), rows.shape(1), kHidden}, kGpu);
  const std::size_t bytes = experts.workspace_bytes(rows);
  const sy::Tensor workspace(sy::DType::kU8, {static_cast<std::int64_t>(bytes)}, kGpu);
  experts.apply(received.experts, results, {workspace.as<std::byte>(), bytes}, stream);
  exchange.combine(received.handle, results, output, stream);
  sy::Tensor sums = output.to(sy::Device::cpu(), stream);  // waits
  exchange.check();
  check_cuda(cudaStreamDestroy(own_stream));
  return sums;
}

/// The largest |a - b| / |b| over all tokens.
double worst_error(const sy::Tensor& left, const sy::Tensor& right) {
  const auto* a = left.as<const float>();
  const auto* b = right.as<const float>();
  double worst = 0;
  for (std::size_t t = 0; t < kTokens; ++t) {
    double error = 0;
    double size = 0;
    for (std::size_t i = t * kHidden; i < (t + 1) * kHidden; ++i) {
      const double difference = static_cast<double>(a[i]) - static_cast<double>(b[i]);
      error += difference * difference;
      size += static_cast<double>(b[i]) * static_cast<double>(b[i]);
    }
    const double ratio = std::sqrt(error / size);
    if (std::isnan(ratio)) return ratio;
    worst = std::max(worst, ratio);
  }
  return worst;
}

}  // namespace

int main() {
  if (sy::num_cuda_devices() == 0) {
    std::printf("no GPU on this machine, nothing to show\n");
    return 0;
  }
  // Sums in a different order occasionally fall on the other side of an fp8 rounding boundary,
  // which changes one of 256 summands by up to 2^-3 of its value.
  constexpr double kTolerance = 1e-2;
  double error = 0;
  sy::run_local_ranks(1, [&](const sy::Group& group) {
    check_cuda(cudaSetDevice(kGpu.index));  // for launch_masked_gemm
    const Fp8Matrix gate_up(2 * kIntermediate, kHidden, 1);
    const Fp8Matrix down(kHidden, kIntermediate, 2);
    OwnExperts own(gate_up, down);
    sy::ExpertOptions options;
    options.intermediate = sy::schemes::kFp8Block;
    const auto exact = sy::make_exact_experts(library_weights(gate_up, down), options, kGpu);
    error = worst_error(run_layer(group, own), run_layer(group, *exact));
  });
  std::printf("largest difference of a token from exact experts: %.2e, allowed %.0e\n", error,
              kTolerance);
  return error <= kTolerance ? 0 : 1;
}
