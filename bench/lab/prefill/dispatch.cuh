// SPDX-License-Identifier: Apache-2.0
//
// dispatch.cuh: codes and scales to final places, by 16-byte stores (D1a) and by bulk copies (D1b).
#pragma once

#include "places.cuh"

// What a row carries beside codes and scales, by lane: 14, 15 ids, 16, 17 weights, 18 the token.
__device__ inline uint4 load_meta(const Args& a, int t, int lane) {
  uint4 v = make_uint4(0, 0, 0, 0);
  if (lane < 14)
    v = ld_nc(a.scales + (size_t)t * SB + lane * 16);
  else if (lane < 16)
    v = ld_nc(reinterpret_cast<const char*>(a.ids + t * K) + (lane - 14) * 16);
  else if (lane < 18)
    v = ld_nc(reinterpret_cast<const char*>(a.wts + t * K) + (lane - 16) * 16);
  return v;
}
__device__ inline int local_id(u32 id, int d) {
  return (int)id >= 0 && (int)id / EL == d ? (int)id - d * EL : -1;
}
__device__ inline uint4 local_meta(uint4 mv, uint4 idv, int lane,
                                   int d) {  // idv: the ids that belong to a weight lane
  const int x = local_id(idv.x, d), y = local_id(idv.y, d), z = local_id(idv.z, d),
            w = local_id(idv.w, d);
  if (lane == 14 || lane == 15) return make_uint4(x, y, z, w);
  if (lane == 16 || lane == 17)
    return make_uint4(x < 0 ? 0 : mv.x, y < 0 ? 0 : mv.y, z < 0 ? 0 : mv.z, w < 0 ? 0 : mv.w);
  return mv;
}
// The whole warp stores the meta words of token t to row `row` of rank d; with SCALES the scales,
// too.
template <bool SCALES>
__device__ inline void store_meta(const Args& a, uint4 mv, int t, int d, int row, int lane) {
  const int from = lane >= 16 ? lane - 2 : lane;
  const uint4 idv = make_uint4(__shfl_sync(~0u, mv.x, from), __shfl_sync(~0u, mv.y, from),
                               __shfl_sync(~0u, mv.z, from), __shfl_sync(~0u, mv.w, from));
  const uint4 v = local_meta(mv, idv, lane, d);
  if (lane < 14) {
    if (SCALES) st16(at<char>(a, d, a.l.scales) + (size_t)row * SB + lane * 16, v);
  } else if (lane < 16)
    st16(at<char>(a, d, a.l.ids) + (size_t)row * 32 + (lane - 14) * 16, v);
  else if (lane < 18)
    st16(at<char>(a, d, a.l.wts) + (size_t)row * 32 + (lane - 16) * 16, v);
  else if (lane == 18)
    at<int>(a, d, a.l.origin)[(size_t)a.r * a.cap + row] = t;
}

// D1a: 16-byte stores from registers to final places; a warp handles 1 / SPLIT of a row.
template <int SPLIT, bool LAST, bool ALL>
__global__ void __launch_bounds__(1024, 1) dispatch_regs(const __grid_constant__ Args a) {
  extern __shared__ __align__(128) char smem[];
  __shared__ Sh sh;
  constexpr int NV = 14 / SPLIT, PB = CB / SPLIT;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, nw = blockDim.x >> 5,
            cta = blockIdx.x, G = gridDim.x;
  int* place = reinterpret_cast<int*>(smem);
  const bool direct = a.T <= kDirect;
  const int i0 = direct ? (int)((i64)a.T * SPLIT * cta / G) : (int)((i64)a.T * cta / G) * SPLIT;
  const int i1 =
      direct ? (int)((i64)a.T * SPLIT * (cta + 1) / G) : (int)((i64)a.T * (cta + 1) / G) * SPLIT;
  const int lo_ = i0 / SPLIT, hi_ = (i1 + SPLIT - 1) / SPLIT;
  pdl_wait();
  pdl_go();
  const u32 call = call_of(a, 0);
  uint4 v[NV], mv = make_uint4(0, 0, 0, 0);
  auto load = [&](int i) {
    const int t = i / SPLIT, pc = i % SPLIT;
    const char* s = a.codes + (size_t)t * CB + pc * PB + lane * 16;
#pragma unroll
    for (int n = 0; n < NV; ++n) v[n] = ld_nc(s + n * 512);
    if (pc == 0) mv = load_meta(a, t, lane);
  };
  int i = i0 + warp;
  if (i < i1) load(i);
  if (find_places<ALL>(a, sh, place, lo_, hi_, call)) {
    while (i < i1) {
      const int t = i / SPLIT, pc = i % SPLIT;
#pragma unroll
      for (int q = 1; q <= P; ++q) {
        const int d = (a.me + q) % P, row = place[(t - lo_) * P + d];
        if (row < 0) continue;
        char* to = at<char>(a, d, a.l.codes) + (size_t)row * CB + pc * PB + lane * 16;
#pragma unroll
        for (int n = 0; n < NV; ++n) st16(to + n * 512, v[n]);
        if (pc == 0) store_meta<true>(a, mv, t, d, row, lane);
      }
      i += nw;
      if (i < i1) load(i);
    }
    tell_and_wait<LAST>(a, call);
  }
  count_end(a, 0);
}

// D1b: rows by bulk copies through shared memory, IS issuing lanes; the other warps store the meta
// words.
template <bool LAST>
__global__ void __launch_bounds__(512, 1) dispatch_bulk(const __grid_constant__ Args a) {
  extern __shared__ __align__(128) char smem[];
  __shared__ Sh sh;
  constexpr int D = 6;
  __shared__ __align__(8) u64 full[IS][D];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, nw = blockDim.x >> 5,
            cta = blockIdx.x, G = gridDim.x;
  char* ring = smem + warp * D * STAGE;
  int* place = reinterpret_cast<int*>(smem + IS * D * STAGE);
  const int lo_ = (int)((i64)a.T * cta / G), hi_ = (int)((i64)a.T * (cta + 1) / G);
  const int n = warp < IS ? (hi_ - lo_ - warp + IS - 1) / IS : 0;  // tokens of this issuer
  if (warp < IS && lane == 0) {
    for (int s = 0; s < D; ++s) mbar_init(&full[warp][s], 1);
    mbar_fence();
  }
  pdl_wait();
  pdl_go();
  const u32 call = call_of(a, 0);
  auto load = [&](int j) {
    const int t = lo_ + warp + j * IS, s = j % D;
    mbar_expect(&full[warp][s], CB + SB);
    bulk_load(ring + s * STAGE, a.codes + (size_t)t * CB, CB, &full[warp][s]);
    bulk_load(ring + s * STAGE + CB, a.scales + (size_t)t * SB, SB, &full[warp][s]);
  };
  if (lane == 0)
    for (int j = 0; j < min(D, n); ++j) load(j);
  const bool ok = find_places<false>(a, sh, place, lo_, hi_, call);
  if (warp < IS) {
    if (lane == 0) {
      bool fine = true;
      for (int j = 0; j < n && fine; ++j) {
        const int t = lo_ + warp + j * IS, s = j % D;
        fine = wait_bar(&full[warp][s], j / D & 1, a.err, 12);
        if (!fine || !ok) {
          if (j + 1 >= min(D, n)) break;
          continue;
        }  // loads end before the CTA does
        for (int q = 1; q <= P; ++q) {
          const int d = (a.me + q) % P, row = place[(t - lo_) * P + d];
          if (row < 0) continue;
          bulk_store(at<char>(a, d, a.l.codes) + (size_t)row * CB, ring + s * STAGE, CB);
          bulk_store(at<char>(a, d, a.l.scales) + (size_t)row * SB, ring + s * STAGE + CB, SB);
        }
        bulk_commit();
        bulk_wait_read<1>();
        if (j >= 1 && j - 1 + D < n) load(j - 1 + D);
      }
      bulk_wait<0>();
      fence_sys();
    }
    __syncwarp();
  } else if (ok) {
    for (int t = lo_ + warp - IS; t < hi_; t += nw - IS) {
      uint4 mv = make_uint4(0, 0, 0, 0);
      if (lane >= 14) mv = load_meta(a, t, lane);
      for (int q = 1; q <= P; ++q) {
        const int d = (a.me + q) % P, row = place[(t - lo_) * P + d];
        if (row >= 0) store_meta<false>(a, mv, t, d, row, lane);
      }
    }
  }
  if (ok) tell_and_wait<LAST>(a, call);
  count_end(a, 0);
}
