// SPDX-License-Identifier: Apache-2.0
//
// common.cuh: sizes, waits, the layout of a window, the arguments of a kernel, call numbers.
#pragma once

#include "ptx.cuh"

#ifndef RANKS
#define RANKS 2
#endif

constexpr int P = RANKS, H = 7168, K = 8, E = 256, EL = E / P;
constexpr int CB = H, SB = H / 128 * 4, YB = H * 2;  // bytes of a row: codes, scales, bf16
constexpr int NR = 20;                               // routings, one per pair of a graph
#ifndef DIRECT
#define DIRECT 1024
#endif
constexpr int MAXG = 160, kDirect = DIRECT;  // above kDirect tokens, CTAs share the counting
constexpr int IS = 4;                        // issuing warps of the bulk variants
constexpr int STAGE = 7424;                  // codes and scales in shared memory
static_assert(P >= 2 && P <= 8 && (P & (P - 1)) == 0);

__device__ inline u32 e4m3x4(float a, float b, float c, float d) {
  return e4m3x2(c, d) << 16 | e4m3x2(a, b);
}
__device__ inline float lo(u32 x) { return __uint_as_float(x << 16); }
__device__ inline float hi(u32 x) { return __uint_as_float(x & 0xffff0000u); }
__host__ __device__ inline u32 mix(u32 a, u32 b) {
  u32 h = b * 2654435761u ^ (a + 1) * 0x9E3779B9u;
  h ^= h >> 15;
  h *= 0x85EBCA6Bu;
  h ^= h >> 13;
  h *= 0xC2B2AE35u;
  return h ^ h >> 16;
}

// Every wait is bounded by 2 s; one that runs out writes `code` to the error word, which ends all
// others.
struct Spin {
  u32* err;
  u32 n = 0;
  u64 t0 = 0;
  __device__ explicit Spin(u32* e) : err(e) {}
  __device__ bool expired(u32 code) {
    if ((++n & 255u) != 0) return false;
    const u64 t = gtime();
    if (t0 == 0) t0 = t;
    if (t - t0 > 2000000000ull) {
      st_rlx(err, code);
      return true;
    }
    return ld_rlx(err) != 0;
  }
};
template <class M>  // u64* or Shared
__device__ inline bool wait_bar(M m, u32 parity, u32* err, u32 code) {
  if (mbar_try(m, parity)) return true;
  Spin s(err);
  while (!mbar_try(m, parity))
    if (s.expired(code)) return false;
  return true;
}
// A flag is a call number; later calls satisfy the wait, too.
__device__ inline bool wait_flag(const u32* p, u32 call, u32* err, u32 code) {
  Spin s(err);
  while ((int)(ld_acq(p) - call) < 0)
    if (s.expired(code)) return false;
  return true;
}
__device__ inline bool wait_word(const u64* p, u32 call, u32& value, u32* err, u32 code) {
  Spin s(err);
  for (;;) {
    const u64 w = ld_rlx(p);
    if ((u32)(w >> 32) == call) {
      value = (u32)w;
      return true;
    }
    if (s.expired(code)) {
      value = 0;
      return false;
    }
  }
}
__device__ inline void put_word(u64* p, u32 value, u32 call) { st_rlx(p, (u64)call << 32 | value); }

struct Lay {  // offsets into a window, the same at all ranks
  size_t gate, cnt, ctaall, ready, flag, blk, expcnt, rec, wflag, ctl_end, meta, codes, scales, ids,
      wts, origin, res, slots, bytes;
};
struct Args {
  char* win[P];
  Lay l;
  const char *codes, *scales;  // this routing's tokens
  const int* ids;
  const float* wts;
  char* out;
  int *rowof, *cnt;  // of this routing: row at each rank or -1; [source][destination]
  u32 *calls, *done, *err;
  u64* ctacnt;
  // Whole work: bf16 tokens, expanded rows, what experts yield; by (source, token, k) the expanded
  // row or -1, and the weight.
  char *tokens, *xcodes, *xscales, *y;
  int *idx, *places, *ecnt;
  float* pw;
  u64* ctaexp;
  int T, cap, me, r;
};
template <typename V>
__device__ inline V* at(const Args& a, int p, size_t off) {
  return reinterpret_cast<V*>(a.win[p] + off);
}

__device__ inline u32 ranks_of(const int* ids) {
  u32 m = 0;
#pragma unroll
  for (int q = 0; q < K / 4; ++q) {
    const int4 v = reinterpret_cast<const int4*>(ids)[q];
    m |= (v.x >= 0 ? 1u << (v.x / EL) : 0) | (v.y >= 0 ? 1u << (v.y / EL) : 0) |
         (v.z >= 0 ? 1u << (v.z / EL) : 0) | (v.w >= 0 ? 1u << (v.w / EL) : 0);
  }
  return m;
}
__device__ inline u32 call_of(const Args& a, int which) {
  return ld_rlx(a.calls + which) / gridDim.x + 1;
}
// The last act of a CTA. A CTA that starts late still computes the same call: its own 1 is missing.
__device__ inline void count_end(const Args& a, int which) {
  __syncthreads();
  if (threadIdx.x == 0) add_one(a.calls + which);
}
