// SPDX-License-Identifier: Apache-2.0
//
// A thread block computes 64 rows by 64 outputs of one expert, each warp 16 of the rows. Each step
// loads 128 k, the elements that share a scale, into shared memory as bf16, which holds every e4m3
// exactly, multiplies them on the tensor cores (mma.sync, on every GPU since Ampere) and adds the
// scaled sums. It shows the interface, not speed: no pipelining, no fp8 tensor cores.

#include "masked_gemm.h"

namespace {

constexpr int kRows = 64;
constexpr int kOutputs = 64;
constexpr int kBlock = 128;          // k that share a scale
constexpr int kStride = kBlock + 8;  // padded row in shared memory: banks differ from row to row
constexpr int kThreads = 128;
constexpr int kColumns = kOutputs / 8;  // 8-wide column tiles of results, one mma each

// Converts e4m3 to bf16: moves exponent and mantissa into place, then multiplies by 2^120, which
// also normalises subnormals.
__device__ unsigned bf16_of(unsigned code) {
  const float small = __uint_as_float((code & 0x80u) << 24 | (code & 0x7Fu) << 20);
  const bool is_nan = (code & 0x7Fu) == 0x7Fu;
  return is_nan ? 0x7FC0u : __float_as_uint(small * 0x1p120f) >> 16;
}

__device__ std::uint16_t bf16_rounded(float x) {
  const unsigned bits = __float_as_uint(x);
  if (x != x) return 0x7FC0;
  return static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

// Loads 128 codes of each of 64 rows; rows from `count` on are zeros.
__device__ void load_tile(const std::uint8_t* from, std::int64_t row_bytes, int count,
                          std::uint16_t* tile) {
  constexpr int kWords = kBlock / 4;
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kWords; i += kThreads) {
    const int row = i / kWords;
    const int k = i % kWords * 4;
    const unsigned codes =
        row < count ? *reinterpret_cast<const unsigned*>(from + row * row_bytes + k) : 0u;
    auto* to = reinterpret_cast<unsigned*>(tile + row * kStride + k);
    to[0] = bf16_of(codes & 0xFFu) | bf16_of(codes >> 8 & 0xFFu) << 16;
    to[1] = bf16_of(codes >> 16 & 0xFFu) | bf16_of(codes >> 24) << 16;
  }
}

// sums += a [16, 16] * b [8, 16]^T, both bf16.
__device__ void multiply_add(float (&sums)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Adds the products of one step for this warp's rows.
__device__ void multiply_block(const std::uint16_t* x, const std::uint16_t* w,
                               float (&sums)[kColumns][4]) {
  const int group = static_cast<int>(threadIdx.x % 32 / 4);
  const int pair = static_cast<int>(threadIdx.x % 4) * 2;
  const auto word = [](const std::uint16_t* at) { return *reinterpret_cast<const unsigned*>(at); };
  for (int k = pair; k < kBlock; k += 16) {
    const std::uint16_t* upper = x + group * kStride + k;
    const std::uint16_t* lower = upper + 8 * kStride;
    const unsigned a[4] = {word(upper), word(lower), word(upper + 8), word(lower + 8)};
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const std::uint16_t* b = w + (8 * c + group) * kStride + k;
      multiply_add(sums[c], a, word(b), word(b + 8));
    }
  }
}

__device__ void store(const MaskedGemm& g, std::int64_t element, float value) {
  if (!g.is_out_bf16) {
    static_cast<float*>(g.out)[element] = value;
  } else {
    static_cast<std::uint16_t*>(g.out)[element] = bf16_rounded(value);
  }
}

__global__ void __launch_bounds__(kThreads) masked_gemm_kernel(const MaskedGemm g) {
  __shared__ __align__(16) std::uint16_t x_tile[kRows * kStride];
  __shared__ __align__(16) std::uint16_t w_tile[kOutputs * kStride];
  const std::int64_t e = blockIdx.z;
  const int first_row = static_cast<int>(blockIdx.y) * kRows;
  const int first_output = static_cast<int>(blockIdx.x) * kOutputs;
  const int count = min(g.num_rows[e], g.capacity) - first_row;  // rows in this tile and after it
  if (count <= 0) return;                                        // the mask
  const std::int64_t num_blocks = g.depth / kBlock;
  const std::uint8_t* x = g.x + (e * g.capacity + first_row) * g.depth;
  const std::uint8_t* w = g.w + (e * g.outputs + first_output) * g.depth;
  const float* x_scales = g.x_scales + e * g.x_scale_expert + first_row;
  const float* w_scales =
      g.w_scales + (e * (g.outputs / kBlock) + first_output / kBlock) * num_blocks;
  const int warp_row = static_cast<int>(threadIdx.x / 32) * 16;
  const int upper = warp_row + static_cast<int>(threadIdx.x % 32 / 4);  // and the row 8 below
  float totals[kColumns][4] = {};
  for (std::int64_t b = 0; b < num_blocks; ++b) {
    __syncthreads();
    load_tile(x + b * kBlock, g.depth, count, x_tile);
    load_tile(w + b * kBlock, g.depth, kOutputs, w_tile);
    __syncthreads();
    float sums[kColumns][4] = {};
    multiply_block(x_tile + warp_row * kStride, w_tile, sums);
    // Scales of rows beyond the count are undefined.
    const float* column = x_scales + b * g.x_scale_column;
    const float of_upper = upper < count ? column[upper] * w_scales[b] : 0.0f;
    const float of_lower = upper + 8 < count ? column[upper + 8] * w_scales[b] : 0.0f;
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int i = 0; i < 4; ++i) totals[c][i] += sums[c][i] * (i < 2 ? of_upper : of_lower);
    }
  }
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = upper + (i < 2 ? 0 : 8);
      const int output = first_output + 8 * c + static_cast<int>(threadIdx.x % 4) * 2 + i % 2;
      if (row >= count) continue;
      store(g, (e * g.capacity + first_row + row) * g.outputs + output, totals[c][i]);
    }
  }
}

}  // namespace

cudaError_t launch_masked_gemm(const MaskedGemm& gemm, cudaStream_t stream) {
  // The counts stay on the GPU, so the grid covers the whole capacity; blocks without rows exit at
  // once.
  const dim3 grid(static_cast<unsigned>(gemm.outputs / kOutputs),
                  static_cast<unsigned>((gemm.capacity + kRows - 1) / kRows),
                  static_cast<unsigned>(gemm.experts));
  masked_gemm_kernel<<<grid, kThreads, 0, stream>>>(gemm);
  return cudaGetLastError();
}
