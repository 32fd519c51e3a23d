// SPDX-License-Identifier: Apache-2.0
//
// Headers that serve both processors give the same bits on a GPU as on the CPU: conversions,
// quantization rules, exp, expert ownership and window offsets. Needs a GPU; skips without one.

#include <cstdint>
#include <cuda_runtime.h>
#include <vector>

#include <gtest/gtest.h>

#include "cuda/base/check.h"
#include "cuda/base/memory.h"
#include "gpu.h"
#include "plan/expert_ownership.h"
#include "plan/window_layout.h"
#include "quant/exp.h"
#include "quant/scalar.h"

namespace switchyard {
namespace {

// Every 211th f32 pattern, which covers all exponents and signs, and the patterns around each tie.
constexpr std::uint64_t kStride = 211;
constexpr std::uint64_t kNumValues = (std::uint64_t{1} << 32) / kStride;

struct Converted {
  std::uint16_t bf16, f16;
  std::uint8_t e4m3, divided, multiplied, by_token, by_tensor;
  std::uint8_t i8_token, i8_tensor, i8_block, nvfp4, mxfp4, e3m2, e2m3, mxfp8;
  std::uint32_t exp, silu, scale, rounded_scale, nvfp4_scale, mxfp4_scale, mxfp8_scale;
};

SWITCHYARD_HOST_DEVICE inline Converted convert(std::uint64_t index) {
  const float x = f32_from_bits(static_cast<std::uint32_t>(index * kStride));
  const float magnitude = f32_from_bits(bits_from_f32(x) & ~kF32SignBit);
  const float amax = magnitude == magnitude ? magnitude : 0.0f;
  constexpr float kGlobalScale = 600.0f;
  const auto code = [&](const ScaleAndMap& rule) { return quantize_element(x * 0.7f, rule.map); };
  const ScaleAndMap divided = divide_rule(amax, false);
  const ScaleAndMap multiplied = multiply_rule(amax, true);
  const ScaleAndMap two_level = two_level_rule(amax, kGlobalScale);
  const ScaleAndMap mxfp4 = mx_rule(Codec::kE2M1, amax);
  const ScaleAndMap mxfp8 = mx_rule(Codec::kE4M3, amax);
  return {bf16_from_f32(x),
          f16_from_f32(x),
          e4m3_from_f32(x),
          code(divided),
          code(multiplied),
          quantize_element(x * 0.3f, token_rule(amax).map),
          quantize_element(x, tensor_rule(0.37f)),
          code(int8_token_rule(amax)),
          quantize_element(x, int8_tensor_rule(0.37f)),
          code(int8_block_rule(amax)),
          code(two_level),
          code(mxfp4),
          code(mx_rule(Codec::kE3M2, amax)),
          code(mx_rule(Codec::kE2M3, amax)),
          code(mxfp8),
          bits_from_f32(exp_f32(x)),
          bits_from_f32(silu(x)),
          bits_from_f32(divided.scale),
          bits_from_f32(multiplied.scale),
          bits_from_f32(two_level.scale),
          bits_from_f32(mxfp4.scale),
          bits_from_f32(mxfp8.scale)};
}

__global__ void convert_all(Converted* out, std::uint64_t begin, std::uint64_t count) {
  const std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) out[i] = convert(begin + i);
}

__global__ void ask_layout(WindowLayout layout, ExpertOwnership ownership, std::size_t* out) {
  const auto i = static_cast<int>(threadIdx.x);
  out[i] = layout.partial(static_cast<std::uint64_t>(i), i % 7, layout.column(i % 3, i % 4)) +
           layout.row(static_cast<std::uint64_t>(i), i % 5) + layout.ids(3) + layout.weights(2) +
           layout.arrived(5, i % 3) + static_cast<std::size_t>(ownership.owner(i % 61)) * 1000003 +
           static_cast<std::size_t>(ownership.local_index(i % 61));
}

TEST(HostDeviceTest, ConversionsAndRulesGiveTheSameBits) {
  REQUIRE_GPU();
  constexpr std::uint64_t kChunk = 1u << 20;
  Converted* device = nullptr;
  ASSERT_EQ(cudaMalloc(&device, kChunk * sizeof(Converted)), cudaSuccess);
  std::vector<Converted> host(kChunk);
  std::uint64_t num_checked = 0;
  for (std::uint64_t begin = 0; begin < kNumValues; begin += kChunk) {
    const std::uint64_t count = begin + kChunk < kNumValues ? kChunk : kNumValues - begin;
    convert_all<<<static_cast<unsigned>((count + 255) / 256), 256>>>(device, begin, count);
    ASSERT_EQ(cudaMemcpy(host.data(), device, count * sizeof(Converted), cudaMemcpyDeviceToHost),
              cudaSuccess);
    for (std::uint64_t i = 0; i < count; ++i) {
      const Converted want = convert(begin + i);
      const Converted& got = host[i];
      const auto bits = static_cast<std::uint32_t>((begin + i) * kStride);
      ASSERT_EQ(got.bf16, want.bf16) << std::hex << bits;
      ASSERT_EQ(got.f16, want.f16) << std::hex << bits;
      ASSERT_EQ(got.e4m3, want.e4m3) << std::hex << bits;
      ASSERT_EQ(got.divided, want.divided) << std::hex << bits;
      ASSERT_EQ(got.multiplied, want.multiplied) << std::hex << bits;
      ASSERT_EQ(got.by_token, want.by_token) << std::hex << bits;
      ASSERT_EQ(got.by_tensor, want.by_tensor) << std::hex << bits;
      ASSERT_EQ(got.exp, want.exp) << std::hex << bits;
      ASSERT_EQ(got.silu, want.silu) << std::hex << bits;
      ASSERT_EQ(got.scale, want.scale) << std::hex << bits;
      ASSERT_EQ(got.rounded_scale, want.rounded_scale) << std::hex << bits;
      ASSERT_EQ(got.i8_token, want.i8_token) << std::hex << bits;
      ASSERT_EQ(got.i8_tensor, want.i8_tensor) << std::hex << bits;
      ASSERT_EQ(got.i8_block, want.i8_block) << std::hex << bits;
      ASSERT_EQ(got.nvfp4, want.nvfp4) << std::hex << bits;
      ASSERT_EQ(got.mxfp4, want.mxfp4) << std::hex << bits;
      ASSERT_EQ(got.e3m2, want.e3m2) << std::hex << bits;
      ASSERT_EQ(got.e2m3, want.e2m3) << std::hex << bits;
      ASSERT_EQ(got.mxfp8, want.mxfp8) << std::hex << bits;
      ASSERT_EQ(got.nvfp4_scale, want.nvfp4_scale) << std::hex << bits;
      ASSERT_EQ(got.mxfp4_scale, want.mxfp4_scale) << std::hex << bits;
      ASSERT_EQ(got.mxfp8_scale, want.mxfp8_scale) << std::hex << bits;
      ++num_checked;
    }
  }
  cudaFree(device);
  EXPECT_EQ(num_checked, kNumValues);
}

TEST(HostDeviceTest, LayoutsGiveTheSameOffsets) {
  REQUIRE_GPU();
  constexpr int kThreads = 256;
  for (const int num_ranks : {2, 3, 8}) {
    WindowShape shape;
    shape.max_tokens = 7;
    shape.num_ranks = num_ranks;
    shape.num_topk = 4;
    shape.num_sets = 3;
    shape.payload_bytes = 37;
    shape.scale_bytes = 8;
    shape.combine_row_bytes = 74;
    const WindowLayout layout = make_window_layout(shape);
    const ExpertOwnership ownership{61, num_ranks};
    std::size_t* device = nullptr;
    ASSERT_EQ(cudaMalloc(&device, kThreads * sizeof(std::size_t)), cudaSuccess);
    ask_layout<<<1, kThreads>>>(layout, ownership, device);
    std::vector<std::size_t> got(kThreads);
    ASSERT_EQ(
        cudaMemcpy(got.data(), device, kThreads * sizeof(std::size_t), cudaMemcpyDeviceToHost),
        cudaSuccess);
    cudaFree(device);
    for (int i = 0; i < kThreads; ++i) {
      const std::size_t want =
          layout.partial(static_cast<std::uint64_t>(i), i % 7, layout.column(i % 3, i % 4)) +
          layout.row(static_cast<std::uint64_t>(i), i % 5) + layout.ids(3) + layout.weights(2) +
          layout.arrived(5, i % 3) + static_cast<std::size_t>(ownership.owner(i % 61)) * 1000003 +
          static_cast<std::size_t>(ownership.local_index(i % 61));
      ASSERT_EQ(got[static_cast<std::size_t>(i)], want);
    }
  }
}

}  // namespace
}  // namespace switchyard
