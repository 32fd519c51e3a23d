// SPDX-License-Identifier: Apache-2.0
//
// checks.cuh: gate and stamp, inputs, stand-ins for experts, and comparisons of every word with its
// reference.
#pragma once

#include "dispatch_whole.cuh"

struct Sync {
  u32* mine;
  u32* peer[P];
  u32* count;
  u64* stamp;
  u32* err;
  int me;
};
__global__ void gate_kernel(
    const __grid_constant__ Sync s) {  // one thread: all GPUs start together
  const u32 n = ld_rlx(s.count) + 1;
  st_rlx(s.count, n);
  for (int p = 0; p < P; ++p)
    if (p != s.me) st_rlx(s.peer[p] + s.me * 32, n);
  for (int p = 0; p < P; ++p)
    if (p != s.me) wait_flag(s.mine + p * 32, n, s.err, 1);
  st_rlx(s.stamp, gtime());
}
__global__ void end_kernel(const __grid_constant__ Sync s) { st_rlx(s.stamp + 1, gtime()); }

__global__ void poison_kernel(char* p, size_t bytes) {
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < bytes / 4;
       i += (size_t)gridDim.x * blockDim.x)
    reinterpret_cast<u32*>(p)[i] = 0xEEEEEEEEu;
}
__global__ void fill_words(u32* p, size_t n, u32 seed) {
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
       i += (size_t)gridDim.x * blockDim.x)
    p[i] = mix(seed, (u32)i);
}
__global__ void fill_scales(float* p, size_t n, u32 seed) {
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
       i += (size_t)gridDim.x * blockDim.x)
    p[i] = 0.5f + (mix(seed, (u32)i) & 0xffff) / 32768.f;
}
__global__ void fill_bf16(u32* p, size_t n,
                          u32 seed) {  // pairs of values of about 1, now and then of 1e-3 or 30
  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
       i += (size_t)gridDim.x * blockDim.x) {
    const u32 h = mix(seed, (u32)i);
    const float m = (h & 0xff) == 0 ? 30.f : (h & 0xff) < 16 ? 1e-3f : 1.f;
    p[i] = bf2(((h >> 8 & 0xfff) / 2048.f - 1) * m, ((h >> 20) / 2048.f - 1) * m);
  }
}

// A stand-in for experts: what row `row` of a rank yields, from its codes, scales and the sum of
// its weights.
__device__ inline u32 expert_pair(u32 codes, int i, float scale,
                                  float wsum) {  // elements 2i, 2i + 1 of 4
  const float x = (float)(signed char)(codes >> 16 * i),
              y = (float)(signed char)(codes >> (16 * i + 8)), f = __fmul_rn(scale, wsum);
  return bf2(__fmul_rn(x, f), __fmul_rn(y, f));
}
__global__ void expert_kernel(const __grid_constant__ Args a) {
  int n = 0;
  for (int s = 0; s < P; ++s) n += a.cnt[s * P + a.me];
  for (int row = blockIdx.x; row < n; row += gridDim.x) {
    float w = 0;
    for (int k = 0; k < K; ++k)
      if (at<int>(a, a.me, a.l.ids)[row * K + k] >= 0)
        w = __fadd_rn(w, at<float>(a, a.me, a.l.wts)[row * K + k]);
    for (int i = threadIdx.x; i < H / 4; i += blockDim.x) {
      const u32 c = at<u32>(a, a.me, a.l.codes)[(size_t)row * (H / 4) + i];
      const float s = at<float>(a, a.me, a.l.scales)[(size_t)row * (H / 128) + i / 32];
      at<uint2>(a, a.me, a.l.res)[(size_t)row * (H / 4) + i] =
          make_uint2(expert_pair(c, 0, s, w), expert_pair(c, 1, s, w));
    }
  }
}
struct Ref {  // what the host knows: inputs of all ranks, the received rows of this one in order
              // (source << 16 | token)
  const char *codes[P], *scales[P];
  const int* ids[P];
  const float* wts[P];
  const int* list;
  const int* cnt;
  int n;
  u64* bad;
};
__global__ void check_recv(const __grid_constant__ Args a, const __grid_constant__ Ref f) {
  u64 bad = 0;
  if (blockIdx.x == 0 && threadIdx.x < P * P) bad += a.cnt[threadIdx.x] != f.cnt[threadIdx.x];
  for (int row = blockIdx.x; row < f.n; row += gridDim.x) {
    const int s = f.list[row] >> 16, t = f.list[row] & 0xffff;
    for (int i = threadIdx.x; i < CB / 4; i += blockDim.x)
      bad += at<u32>(a, a.me, a.l.codes)[(size_t)row * (CB / 4) + i] !=
             reinterpret_cast<const u32*>(f.codes[s])[(size_t)t * (CB / 4) + i];
    for (int i = threadIdx.x; i < SB / 4; i += blockDim.x)
      bad += at<u32>(a, a.me, a.l.scales)[(size_t)row * (SB / 4) + i] !=
             reinterpret_cast<const u32*>(f.scales[s])[(size_t)t * (SB / 4) + i];
    if (threadIdx.x < K) {
      const int id = f.ids[s][t * K + threadIdx.x];
      const bool mine = id >= 0 && id / EL == a.me;
      bad += at<int>(a, a.me, a.l.ids)[row * K + threadIdx.x] != (mine ? id - a.me * EL : -1);
      bad += at<u32>(a, a.me, a.l.wts)[row * K + threadIdx.x] !=
             (mine ? __float_as_uint(f.wts[s][t * K + threadIdx.x]) : 0);
    }
    if (threadIdx.x == 0) bad += at<int>(a, a.me, a.l.origin)[(size_t)a.r * a.cap + row] != t;
  }
  if (f.n < a.cap && blockIdx.x == 0)
    for (int i = threadIdx.x; i < CB / 4; i += blockDim.x)
      bad += at<u32>(a, a.me, a.l.codes)[(size_t)f.n * (CB / 4) + i] != 0xEEEEEEEEu;
  if (bad) atomicAdd(f.bad, bad);
}
__global__ void check_out(const __grid_constant__ Args a, const __grid_constant__ Ref f) {
  u64 bad = 0;
  for (int t = blockIdx.x; t < a.T; t += gridDim.x)
    for (int i = threadIdx.x; i < H / 4; i += blockDim.x) {
      const u32 c = reinterpret_cast<const u32*>(f.codes[a.me])[(size_t)t * (H / 4) + i];
      const float sc =
          reinterpret_cast<const float*>(f.scales[a.me])[(size_t)t * (H / 128) + i / 32];
      float y[4];
      bool any = false;
      for (int p = 0; p < P; ++p) {
        float w = 0;
        bool here = false;
        for (int k = 0; k < K; ++k) {
          const int id = a.ids[t * K + k];
          if (id >= 0 && id / EL == p) {
            w = __fadd_rn(w, a.wts[t * K + k]);
            here = true;
          }
        }
        if (!here) continue;
        for (int h = 0; h < 2; ++h) {
          const u32 x = expert_pair(c, h, sc, w);
          y[2 * h] = any ? __fadd_rn(y[2 * h], lo(x)) : lo(x);
          y[2 * h + 1] = any ? __fadd_rn(y[2 * h + 1], hi(x)) : hi(x);
        }
        any = true;
      }
      const uint2 want = any ? make_uint2(bf2(y[0], y[1]), bf2(y[2], y[3])) : make_uint2(0, 0);
      const uint2 got = reinterpret_cast<const uint2*>(a.out)[(size_t)t * (H / 4) + i];
      bad += (got.x != want.x) + (got.y != want.y);
    }
  if (bad) atomicAdd(f.bad, bad);
}
// The reference of whole work quantizes again: a warp holds a block of 128 elements, 4 per lane. Of
// token t of rank s.
__device__ inline void ref_codes(const char* tokens, int t, int block, int lane, u32& codes,
                                 float& scale) {
  const uint2 v = reinterpret_cast<const uint2*>(tokens + (size_t)t * YB)[block * 32 + lane];
  float m = fmaxf(fmaxf(fabsf(lo(v.x)), fabsf(hi(v.x))), fmaxf(fabsf(lo(v.y)), fabsf(hi(v.y))));
  for (int o = 16; o; o >>= 1) m = fmaxf(m, __shfl_xor_sync(~0u, m, o));
  const float inv = inverse_of(m);
  codes = e4m3x4(lo(v.x) * inv, hi(v.x) * inv, lo(v.y) * inv, hi(v.y) * inv);
  scale = scale_of(m);
}
struct RefX {
  const char* tokens[P];
  const float* wts[P];
  const int *xlist, *xplace, *ecnt;
  int n, xcap;
  u64* bad;
};
__global__ void check_expanded(const __grid_constant__ Args a, const __grid_constant__ RefX f) {
  u64 bad = 0;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  if (blockIdx.x == 0 && threadIdx.x < EL) bad += a.ecnt[threadIdx.x] != f.ecnt[threadIdx.x];
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < P * a.T * K;
       i += gridDim.x * blockDim.x) {
    bad += a.places[i] != f.xplace[i];
    if (f.xplace[i] >= 0)
      bad += __float_as_uint(a.pw[i]) != __float_as_uint(f.wts[i / (a.T * K)][i % (a.T * K)]);
  }
  for (int row = blockIdx.x; row < min(f.n + 128, f.xcap); row += gridDim.x) {
    const int who = row < f.n ? f.xlist[row] : -1;
    for (int b = warp; b < H / 128; b += blockDim.x / 32) {
      u32 c = 0xEEEEEEEEu;
      float s = __uint_as_float(0xEEEEEEEEu);
      if (who >= 0) ref_codes(f.tokens[who >> 16], who & 0xffff, b, lane, c, s);
      bad += reinterpret_cast<const u32*>(a.xcodes)[(size_t)row * (CB / 4) + b * 32 + lane] != c;
      if (lane == 0)
        bad += reinterpret_cast<const u32*>(a.xscales)[(size_t)row * (SB / 4) + b] !=
               __float_as_uint(s);
    }
  }
  if (bad) atomicAdd(f.bad, bad);
}
__global__ void expert_expanded(const __grid_constant__ Args a, const __grid_constant__ RefX f) {
  for (int row = blockIdx.x; row < f.n; row += gridDim.x)
    for (int i = threadIdx.x; i < H / 4; i += blockDim.x) {
      const u32 c = reinterpret_cast<const u32*>(a.xcodes)[(size_t)row * (H / 4) + i];
      const float s = reinterpret_cast<const float*>(a.xscales)[(size_t)row * (H / 128) + i / 32];
      reinterpret_cast<uint2*>(a.y)[(size_t)row * (H / 4) + i] =
          make_uint2(expert_pair(c, 0, s, 1.f), expert_pair(c, 1, s, 1.f));
    }
}
__global__ void check_out_whole(const __grid_constant__ Args a, const __grid_constant__ RefX f) {
  u64 bad = 0;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  for (int t = blockIdx.x; t < a.T; t += gridDim.x)
    for (int b = warp; b < H / 128; b += blockDim.x / 32) {
      u32 c;
      float s;
      ref_codes(a.tokens, t, b, lane, c, s);
      const u32 x[2] = {expert_pair(c, 0, s, 1.f), expert_pair(c, 1, s, 1.f)};
      float y[4];
      bool any = false;
      for (int p = 0; p < P; ++p) {
        float g[4] = {0, 0, 0, 0};
        bool here = false;
        for (int k = 0; k < K; ++k) {
          const int id = a.ids[t * K + k];
          if (id < 0 || id / EL != p) continue;
          const float w = a.wts[t * K + k];
          here = true;
          for (int h = 0; h < 2; ++h) {
            g[2 * h] = __fmaf_rn(w, lo(x[h]), g[2 * h]);
            g[2 * h + 1] = __fmaf_rn(w, hi(x[h]), g[2 * h + 1]);
          }
        }
        if (!here) continue;
        for (int h = 0; h < 2; ++h) {
          const u32 z = bf2(g[2 * h], g[2 * h + 1]);
          y[2 * h] = any ? __fadd_rn(y[2 * h], lo(z)) : lo(z);
          y[2 * h + 1] = any ? __fadd_rn(y[2 * h + 1], hi(z)) : hi(z);
        }
        any = true;
      }
      const uint2 want = any ? make_uint2(bf2(y[0], y[1]), bf2(y[2], y[3])) : make_uint2(0, 0);
      const uint2 got = reinterpret_cast<const uint2*>(a.out)[(size_t)t * (H / 4) + b * 32 + lane];
      bad += (got.x != want.x) + (got.y != want.y);
    }
  if (bad) atomicAdd(f.bad, bad);
}
