// SPDX-License-Identifier: Apache-2.0
//
// memory.cuh: what a number of SMs can move within one GPU and over the wire.
#pragma once

#include "common.cuh"

// MODE 0: bulk loads; 1: bulk copy; 2: 16-byte loads; 3: bulk stores; 4: 16-byte stores. Rows of YB
// bytes.
template <int MODE>
__global__ void __launch_bounds__(512, 1)
    memory_kernel(const char* from, char* to, int rows, u32* err, u32* sink) {
  extern __shared__ __align__(128) char smem[];
  constexpr int D = 3;
  __shared__ __align__(8) u64 full[IS][D];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  if constexpr (MODE == 2) {
    u32 x = 0;
    for (int r = warp * gridDim.x + blockIdx.x; r < rows; r += (blockDim.x >> 5) * gridDim.x)
#pragma unroll 1
      for (int c = 0; c < 4; ++c) {
        uint4 v[7];
#pragma unroll
        for (int u = 0; u < 7; ++u)
          v[u] = ld_nc(from + (size_t)r * YB + (c * 7 + u) * 512 + lane * 16);
#pragma unroll
        for (int u = 0; u < 7; ++u) x ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
      }
    if (x == 0x12345678u) *sink = x;
  } else if constexpr (MODE == 4) {
    const uint4 v = make_uint4(lane, warp, rows, blockIdx.x);
    for (int r = warp * gridDim.x + blockIdx.x; r < rows; r += (blockDim.x >> 5) * gridDim.x)
#pragma unroll
      for (int u = 0; u < 28; ++u) st16(to + (size_t)r * YB + u * 512 + lane * 16, v);
  } else if constexpr (MODE == 3) {
    if (warp < IS && lane == 0)
      for (int r = warp * gridDim.x + blockIdx.x; r < rows; r += IS * gridDim.x) {
        bulk_store(to + (size_t)r * YB, smem + warp * D * YB, YB);
        bulk_commit();
        bulk_wait_read<D>();
      }
    bulk_wait<0>();
  } else if (warp < IS && lane == 0) {
    for (int s = 0; s < D; ++s) mbar_init(&full[warp][s], 1);
    mbar_fence();
    const int r0 = warp * gridDim.x + blockIdx.x, step = IS * gridDim.x,
              n = r0 < rows ? (rows - r0 + step - 1) / step : 0;
    char* ring = smem + warp * D * YB;
    auto load = [&](int j) {
      mbar_expect(&full[warp][j % D], YB);
      bulk_load(ring + j % D * YB, from + (size_t)(r0 + j * step) * YB, YB, &full[warp][j % D]);
    };
    for (int j = 0; j < min(D, n); ++j) load(j);
    for (int j = 0; j < n; ++j) {
      if (!wait_bar(&full[warp][j % D], j / D & 1, err, 50)) break;
      if constexpr (MODE == 1) {
        bulk_store(to + (size_t)(r0 + j * step) * YB, ring + j % D * YB, YB);
        bulk_commit();
        bulk_wait_read<1>();
        if (j >= 1 && j - 1 + D < n) load(j - 1 + D);
      } else if (j + D < n)
        load(j + D);
    }
    bulk_wait<0>();
  }
}
