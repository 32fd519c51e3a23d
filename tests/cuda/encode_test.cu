// SPDX-License-Identifier: Apache-2.0
//
// The kernels' replacements for the definitions of quant give the same bits: every f32 through
// every element format, every bf16 and f16, and the shared division. The GPU compares and counts.
// Needs a GPU; skips without one.

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cuda/base/check.h"
#include "cuda/base/memory.h"
#include "cuda/quantize/encode.cuh"
#include "cuda/quantize/rows.cuh"
#include "gpu.h"

namespace switchyard {
namespace {

constexpr unsigned kThreads = 256;
constexpr unsigned kBlocks = 4096;

// The result of one comparison: how often it failed, and the input of one failure.
struct Tally {
  unsigned long long num_wrong;
  std::uint32_t example;
};

enum Comparison : int {
  kE4M3Nan,
  kE4M3NanIsMax,
  kE4M3NanIsMin,
  kI8Away,
  kI8Even,
  kI8Toward0,
  kE2M1,
  kE2M3,
  kE3M2,
  kToBf16,
  kToF16,
  kReciprocal,
  kSilu,
  kLargest,
  kNumComparisons,
};
const char* const kNames[] = {"e4m3, NaN stays",
                              "e4m3, NaN is max",
                              "e4m3, NaN is min",
                              "int8 half away",
                              "int8 half even",
                              "int8 truncate",
                              "e2m1",
                              "e2m3",
                              "e3m2",
                              "to bf16",
                              "to f16",
                              "reciprocal",
                              "silu",
                              "largest magnitude"};

__device__ void compare(Tally* tally, std::uint32_t input, std::uint32_t got, std::uint32_t want) {
  if (got == want) return;
  atomicAdd(&tally->num_wrong, 1ull);
  tally->example = input;
}

// `one` is an argument, so that the multiplication is not optimized away, as in kernels.
__device__ void compare_bytes(Tally* tally, std::uint32_t bits, float one, Codec codec,
                              std::uint8_t nan_code) {
  const float x = f32_from_bits(bits);
  const cuda::PreparedMap map = cuda::prepare_map({one, false, nan_code, codec}, 1.0f);
  const std::uint32_t want = quantize_element(x, map.map);
  compare(tally, bits, cuda::quantize4(map, x, -1.0f, x, 0.0f),
          want | quantize_element(-1.0f, map.map) << 8 | want << 16);
}

template <Codec kCodec>
__device__ void compare_fp6(Tally* tally, std::uint32_t bits, float one, DType dtype) {
  const float y = f32_from_bits(bits) * one;
  const std::uint8_t code = quantize_element(y, {one, false, kFp6MaxCode, kCodec});
  compare(tally, bits, bits_from_f32(cuda::round_fp6<kCodec>(y)),
          bits_from_f32(decode(dtype, code)));
}

__device__ void compare_e2m1(Tally* tally, std::uint32_t bits, float one) {
  const float x = f32_from_bits(bits);
  const cuda::PreparedMap map = cuda::prepare_map({one, false, kE2M1MaxCode, Codec::kE2M1}, 1.0f);
  const float elements[8] = {x, 0.5f, 1.0f, -6.0f, 0.0f, 0.0f, 2.0f, x};
  const std::uint32_t want = quantize_element(x, map.map);
  compare(tally, bits, cuda::quantize8_e2m1(map, elements), want | 0x0400F210u | want << 28);
}

template <DType kGate>
__device__ void compare_silu(Tally* tallies, std::uint32_t bits, float x) {
  if (!(fabsf(x) <= cuda::kSiluNear)) return;
  compare(tallies + kSilu, bits, bits_from_f32(cuda::silu_near<kGate>(x)), bits_from_f32(silu(x)));
}

// Tests the fast paths of wide kernels within the range where they apply.
__device__ void compare_near(Tally* tallies, std::uint32_t bits) {
  const float x = f32_from_bits(bits);
  if (x >= 0x1p-125f && x <= 0x1p125f) {
    compare(tallies + kReciprocal, bits, bits_from_f32(cuda::near_reciprocal(x)),
            bits_from_f32(1.0f / x));
  }
  compare_silu<DType::kF32>(tallies, bits, x);
  if ((bits & 0xFFFFu) == 0) {
    compare_silu<DType::kBF16>(tallies, bits, x);
    compare_silu<DType::kF16>(tallies, bits, f32_from_f16(static_cast<std::uint16_t>(bits >> 16)));
  }
  if (x == x) {
    const float elements[8] = {x, 0.5f, 1.0f, -6.0f, 0.0f, 0.0f, 2.0f, x};
    float eighths[8];
    for (int i = 0; i < 8; ++i) eighths[i] = __saturatef(fabsf(elements[i]) * 0.125f);
    const std::uint32_t code = e2m1_from_f32(x);
    compare(tallies + kE2M1, bits, cuda::encode8_e2m1(eighths, elements),
            code | 0x0400F210u | code << 28);
  }
}

__device__ void compare_largest(Tally* tally, std::uint32_t bits) {
  const std::uint32_t magnitude = bits & ~kF32SignBit;
  const std::uint32_t words[3] = {0x80000000u, bits, 0x3F803F80u};
  const std::uint32_t as_f32 = cuda::max_bits_of<DType::kF32>(words);
  compare(tally, bits, as_f32 > kF32Infinity ? kF32NaN : as_f32,
          magnitude > kF32Infinity ? kF32NaN : max(magnitude, 0x3F803F80u));
  const std::uint32_t larger = max(max(bits & 0x7FFFu, bits >> 16 & 0x7FFFu), 0x3F80u);
  compare(tally, bits, cuda::max_bits_of<DType::kBF16>(words), larger << 16);
  const std::uint32_t as_f16 = cuda::max_bits_of<DType::kF16>(words);
  compare(tally, bits, as_f16 > kF32Infinity ? kF32NaN : as_f16,
          bits_from_f32(f32_from_f16(static_cast<std::uint16_t>(larger))));
}

__global__ void compare_all_kernel(Tally* tallies, float one) {
  const std::uint64_t step = std::uint64_t{gridDim.x} * blockDim.x;
  std::uint64_t i = std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  for (; i < std::uint64_t{1} << 32; i += step) {
    const auto bits = static_cast<std::uint32_t>(i);
    const float x = f32_from_bits(bits);
    compare_bytes(tallies + kE4M3Nan, bits, one, Codec::kE4M3, kE4M3NaN);
    compare_bytes(tallies + kE4M3NanIsMax, bits, one, Codec::kE4M3, kE4M3MaxCode);
    compare_bytes(tallies + kE4M3NanIsMin, bits, one, Codec::kE4M3, kE4M3MinCode);
    compare_bytes(tallies + kI8Away, bits, one, Codec::kI8HalfAway, 0);
    compare_bytes(tallies + kI8Even, bits, one, Codec::kI8HalfEven, 0);
    compare_bytes(tallies + kI8Toward0, bits, one, Codec::kI8Truncate, 0);
    compare_e2m1(tallies + kE2M1, bits, one);
    compare_fp6<Codec::kE2M3>(tallies + kE2M3, bits, one, DType::kE2M3);
    compare_fp6<Codec::kE3M2>(tallies + kE3M2, bits, one, DType::kE3M2);
    compare(tallies + kToBf16, bits, cuda::narrow2<DType::kBF16>(x, 1.0f),
            bf16_from_f32(x) | 0x3F800000u);
    compare(tallies + kToF16, bits, cuda::narrow2<DType::kF16>(-2.0f, x),
            0xC000u | static_cast<std::uint32_t>(f16_from_f32(x)) << 16);
    compare_near(tallies, bits);
    compare_largest(tallies + kLargest, bits);
  }
}

// Compares every 16-bit float next to its successor, and every byte as a code.
__global__ void compare_widening_kernel(Tally* tally) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  const std::uint32_t next = (i + 1) & 0xFFFF;
  const float2 bf16 = cuda::widen2<DType::kBF16>(i | next << 16);
  const float2 f16 = cuda::widen2<DType::kF16>(i | next << 16);
  compare(tally, i, bits_from_f32(bf16.x), bits_from_f32(f32_from_bf16(i)));
  compare(tally, i, bits_from_f32(bf16.y), bits_from_f32(f32_from_bf16(next)));
  compare(tally, i, bits_from_f32(f16.x), bits_from_f32(f32_from_f16(i)));
  compare(tally, i, bits_from_f32(f16.y), bits_from_f32(f32_from_f16(next)));
  if (i >= 256) return;
  const std::uint32_t codes = i | (255 - i) << 8 | i << 16 | (i ^ 0x55) << 24;
  float values[8];
  for (const DType dtype : {DType::kE4M3, DType::kI8}) {
    cuda::decode4(dtype, codes, values);
    for (int j = 0; j < 4; ++j) {
      const auto code = static_cast<std::uint8_t>(codes >> (8 * j));
      compare(tally, i, bits_from_f32(canonical_f32(values[j])),
              bits_from_f32(decode(dtype, code)));
    }
  }
  cuda::decode8_e2m1(codes, values);
  for (int j = 0; j < 8; ++j) {
    const auto code = static_cast<std::uint8_t>(codes >> (4 * j) & 0xF);
    compare(tally, i, bits_from_f32(values[j]), bits_from_f32(f32_from_e2m1(code)));
  }
}

// Tests x / s for `num` mantissas of s starting at `first`, and mantissas of x starting at
// `x_first` in steps of `x_step`; signs and exponents vary with them.
struct Quotients {
  std::uint32_t first, num, x_first, x_step;
};

__global__ void compare_quotients_kernel(Tally* tally, Quotients range) {
  const std::uint32_t step = gridDim.x * blockDim.x;
  for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < range.num; i += step) {
    const std::uint32_t mantissa = range.first + i;
    const float s = f32_from_bits((127 - 20 + mantissa % 40) << 23 | mantissa);
    const cuda::PreparedMap map = cuda::prepare_map({s, true, 0}, 0x1p60f);
    for (std::uint32_t m = range.x_first; m < 1u << 23; m += range.x_step) {
      const float x = f32_from_bits((m & 1) << 31 | (100 + m % 60) << 23 | m);
      compare(tally, mantissa, bits_from_f32(cuda::scaled(map, x)), bits_from_f32(x / s));
    }
  }
}

class TallyBuffer {
 public:
  explicit TallyBuffer(int count)
      : count_(count), device_(sizeof(Tally) * static_cast<std::size_t>(count)) {
    cuda::check_cuda(cudaMemset(device_.data(), 0, device_.size_bytes()), "tally");
  }
  Tally* device() const { return device_.as<Tally>(); }
  std::vector<Tally> read() const {
    std::vector<Tally> host(static_cast<std::size_t>(count_));
    cuda::check_cuda(
        cudaMemcpy(host.data(), device_.data(), device_.size_bytes(), cudaMemcpyDeviceToHost),
        "tally");
    return host;
  }

 private:
  int count_;
  cuda::DeviceBuffer device_;
};

TEST(EncodeTest, AllInputsOfEveryElementFormat) {
  REQUIRE_GPU();
  const TallyBuffer tallies(kNumComparisons);
  compare_all_kernel<<<kBlocks, kThreads>>>(tallies.device(), 1.0f);
  cuda::check_launch("compare");
  const std::vector<Tally> got = tallies.read();
  for (int i = 0; i < kNumComparisons; ++i) {
    const Tally& tally = got[static_cast<std::size_t>(i)];
    EXPECT_EQ(tally.num_wrong, 0u) << kNames[i] << ", for example " << std::hex << tally.example;
  }
}

TEST(EncodeTest, EverySmallFloatAndCodeIsWidened) {
  REQUIRE_GPU();
  const TallyBuffer tally(1);
  compare_widening_kernel<<<65536 / kThreads, kThreads>>>(tally.device());
  cuda::check_launch("compare");
  EXPECT_EQ(tally.read()[0].num_wrong, 0u) << std::hex << tally.read()[0].example;
}

void expect_quotients(std::uint32_t x_first, std::uint32_t x_step) {
  const TallyBuffer tally(1);
  constexpr std::uint32_t kPart = 1u << 20;
  for (std::uint32_t first = 0; first < 1u << 23; first += kPart) {
    compare_quotients_kernel<<<kBlocks, kThreads>>>(tally.device(),
                                                    {first, kPart, x_first, x_step});
    cuda::check_launch("compare");
  }
  EXPECT_EQ(tally.read()[0].num_wrong, 0u) << std::hex << tally.read()[0].example;
}

// Every mantissa of the divisor, with every mantissa of bf16, every one of f16, and many of f32.
TEST(EncodeTest, SharedQuotientsAreIeeeQuotients) {
  REQUIRE_GPU();
  expect_quotients(0, 1u << 16);
  expect_quotients(0, 1u << 13);
  expect_quotients(1, 6007);
  expect_quotients((1u << 23) - 64, 1);  // the first estimate is worst here
}

// All 2^46 pairs; takes minutes.
TEST(EncodeTest, DISABLED_EverySharedQuotient) {
  REQUIRE_GPU();
  for (std::uint32_t x_first = 0; x_first < 64; ++x_first) expect_quotients(x_first, 64);
}

__global__ void signs_of_zero_kernel(float s, std::uint32_t* out) {
  const cuda::PreparedMap map = cuda::prepare_map({s, true, 0}, 1.0f);
  out[0] = bits_from_f32(cuda::scaled(map, 0.0f));
  out[1] = bits_from_f32(cuda::scaled(map, -0.0f));
}

TEST(EncodeTest, SharedQuotientsKeepTheSignOfZero) {
  REQUIRE_GPU();
  const cuda::DeviceBuffer device(8);
  signs_of_zero_kernel<<<1, 1>>>(3.7f, device.as<std::uint32_t>());
  std::uint32_t host[2];
  cuda::check_cuda(cudaMemcpy(host, device.data(), 8, cudaMemcpyDeviceToHost), "zero");
  EXPECT_EQ(host[0], 0u);
  EXPECT_EQ(host[1], kF32SignBit);
}

}  // namespace
}  // namespace switchyard
