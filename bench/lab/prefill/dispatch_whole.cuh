// SPDX-License-Identifier: Apache-2.0
//
// dispatch_whole.cuh: bf16 tokens are quantized, land and are copied to expanded rows (D3).
#pragma once

#include "common.cuh"

// D3: quantizes, stores own rows to their places, lands rows for peers in slots (source, token),
// one record per block of tokens of a sending warp; the CTA of the same number at the receiver
// copies landed rows to their places.
struct ShX {
  u32 mask[E][2];
  int run[E], before[E], total[E], cnt[P * EL], ebase[P * EL], wsum[EL / 32];
};

// Counts choices per expert: idx[(t - lo) * K + k] becomes the number of earlier tokens of this
// rank with the same expert (for the CTA's own tokens), sh.ebase[s * EL + e] the expanded row of
// the first token of source s at local expert e. `meanwhile` runs while the counts of peers travel.
template <bool EARLY, class F>
__device__ inline bool find_experts(const Args& a, ShX& sh, int* idx, int lo_, int hi_, u32 call,
                                    F meanwhile) {
  const int tid = threadIdx.x, lane = tid & 31, nt = blockDim.x, cta = blockIdx.x, G = gridDim.x,
            T = a.T, chunk = nt / K;
  const bool direct = T <= kDirect;
  for (int e = tid; e < E; e += nt)
    sh.run[e] = sh.before[e] = sh.total[e] = sh.mask[e][0] = sh.mask[e][1] = 0;
  __syncthreads();
  if (direct && EARLY) {  // 4 loads of 4 ids on their way at once
    const int n = T * K / 4;
    for (int i0 = tid; i0 < n; i0 += 4 * nt) {
      int4 v[4];
#pragma unroll
      for (int u = 0; u < 4; ++u)
        v[u] = i0 + u * nt < n ? reinterpret_cast<const int4*>(a.ids)[i0 + u * nt]
                               : int4{-1, -1, -1, -1};
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        const int e[4] = {v[u].x, v[u].y, v[u].z, v[u].w};
#pragma unroll
        for (int x = 0; x < 4; ++x)
          if (e[x] >= 0) {
            atomicAdd(&sh.total[e[x]], 1);
            if (i0 + u * nt < lo_ * (K / 4)) atomicAdd(&sh.before[e[x]], 1);
          }
      }
    }
  } else if (direct) {
    for (int i = tid; i < T * K; i += nt) {
      const int e = a.ids[i];
      if (e >= 0) {
        atomicAdd(&sh.total[e], 1);
        if (i < lo_ * K) atomicAdd(&sh.before[e], 1);
      }
    }
  }
  for (int t0 = lo_; t0 < hi_; t0 += chunk) {  // at most 64 tokens: one bit each
    const int j = tid / K, t = t0 + j, e = t < hi_ ? a.ids[t * K + tid % K] : -1;
    if (e >= 0) atomicOr(&sh.mask[e][j >> 5], 1u << (j & 31));
    __syncthreads();
    if (e >= 0) {
      const u32 below = (1u << (j & 31)) - 1;
      idx[(t - lo_) * K + tid % K] =
          sh.run[e] + (j < 32 ? __popc(sh.mask[e][0] & below)
                              : __popc(sh.mask[e][0]) + __popc(sh.mask[e][1] & below));
    }
    __syncthreads();
    for (int x = tid; x < E; x += nt) {
      sh.run[x] += __popc(sh.mask[x][0]) + __popc(sh.mask[x][1]);
      sh.mask[x][0] = sh.mask[x][1] = 0;
    }
    __syncthreads();
  }
  bool ok = true;
  if (!direct) {  // two counts of 16 bits and the call per word
    if (tid < E / 2)
      put_word(a.ctaexp + cta * (E / 2) + tid, sh.run[2 * tid] | sh.run[2 * tid + 1] << 16, call);
    const int col = tid % (E / 2), step = nt / (E / 2);
    int tot0 = 0, tot1 = 0, bef0 = 0, bef1 = 0;
    for (int c0 = tid / (E / 2); c0 < G; c0 += 4 * step) {
      u64 w[4];
#pragma unroll
      for (int u = 0; u < 4; ++u)
        if (c0 + u * step < G) w[u] = ld_rlx(a.ctaexp + (c0 + u * step) * (E / 2) + col);
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        const int c = c0 + u * step;
        if (c >= G) continue;
        u32 v = (u32)w[u];
        if ((u32)(w[u] >> 32) != call)
          ok &= wait_word(a.ctaexp + c * (E / 2) + col, call, v, a.err, 40);
        const int x = v & 0xffff, y = v >> 16;
        tot0 += x;
        tot1 += y;
        if (c < cta) {
          bef0 += x;
          bef1 += y;
        }
      }
    }
    atomicAdd(&sh.total[2 * col], tot0);
    atomicAdd(&sh.total[2 * col + 1], tot1);
    atomicAdd(&sh.before[2 * col], bef0);
    atomicAdd(&sh.before[2 * col + 1], bef1);
  }
  __syncthreads();
  if (cta == 0)
    for (int e = tid; e < E; e += nt)
      put_word(at<u64>(a, e / EL, a.l.expcnt) + a.me * EL + e % EL, sh.total[e], call);
  for (int i = tid; i < (hi_ - lo_) * K; i += nt) {
    const int e = a.ids[lo_ * K + i];
    if (e >= 0) idx[i] += sh.before[e];
  }
  meanwhile();
  for (int i = tid; i < P * EL; i += nt) {
    u32 v;
    ok &= wait_word(at<u64>(a, a.me, a.l.expcnt) + i, call, v, a.err, 41);
    sh.cnt[i] = v;
  }
  if (!__syncthreads_and(ok)) return false;
  int sum = 0, padded = 0, scan = 0;
  if (tid < EL) {
    for (int s = 0; s < P; ++s) sum += sh.cnt[s * EL + tid];
    scan = padded = (sum + 127) / 128 * 128;
    for (int o = 1; o < 32; o <<= 1) {
      const int v = __shfl_up_sync(~0u, scan, o);
      if (lane >= o) scan += v;
    }
    if (lane == 31) sh.wsum[tid / 32] = scan;
  }
  __syncthreads();
  if (tid < EL) {
    int start = scan - padded;
    for (int w = 0; w < tid / 32; ++w) start += sh.wsum[w];
    for (int s = 0; s < P; ++s) {
      sh.ebase[s * EL + tid] = start;
      start += sh.cnt[s * EL + tid];
    }
    if (cta == 0) a.ecnt[tid] = sum;
  }
  __syncthreads();
  return true;
}

// One scale per 128 elements; the reference uses the same two functions.
__device__ inline float scale_of(float amax) { return amax * (1.f / 448.f); }
__device__ inline float inverse_of(float amax) { return amax > 0 ? 448.f * rcp(amax) : 0.f; }
// 8 elements per lane: elements n * 256 + lane * 8 of a row; half a warp holds a block.
__device__ inline void quantize(uint4 v, int n, int lane, char* stage) {
  u32 m = max_abs2(v.x, v.y);
  m = max_abs2(m, max_abs2(v.z, v.w));
#pragma unroll
  for (int o = 8; o; o >>= 1) m = max_abs2(m, __shfl_xor_sync(~0u, m, o));
  const float amax = fmaxf(lo(m), hi(m)), inv = inverse_of(amax);
  *reinterpret_cast<uint2*>(stage + n * 256 + lane * 8) =
      make_uint2(e4m3x4(lo(v.x) * inv, hi(v.x) * inv, lo(v.y) * inv, hi(v.y) * inv),
                 e4m3x4(lo(v.z) * inv, hi(v.z) * inv, lo(v.w) * inv, hi(v.w) * inv));
  if ((lane & 15) == 0)
    *reinterpret_cast<float*>(stage + CB + (n * 2 + lane / 16) * 4) = scale_of(amax);
}
// The whole warp: from a stage to the expanded rows that lanes 0 to 7 hold (or -1).
__device__ inline void scatter_row(const Args& a, const char* stage, int place, int lane) {
  u32 bits = __ballot_sync(~0u, lane < 8 && place >= 0);
  const uint4 sv = (lane & 15) < 14 ? *reinterpret_cast<const uint4*>(stage + CB + (lane & 15) * 16)
                                    : make_uint4(0, 0, 0, 0);
  while (bits) {
    const int k0 = __ffs(bits) - 1;
    bits &= bits - 1;
    const bool two = bits != 0;
    const int k1 = two ? __ffs(bits) - 1 : k0;
    bits &= bits - 1;
    const int p0 = __shfl_sync(~0u, place, k0), p1 = __shfl_sync(~0u, place, k1);
    if (lane == 0) {
      bulk_store(a.xcodes + (size_t)p0 * CB, stage, CB);
      if (two) bulk_store(a.xcodes + (size_t)p1 * CB, stage, CB);
    }
    if ((lane & 15) < 14 && (lane < 16 || two))
      st16(a.xscales + (size_t)(lane < 16 ? p0 : p1) * SB + (lane & 15) * 16, sv);
  }
}
// EARLY: the first token of a warp is quantized before the counts of peers are there, numbers among
// the source's tokens stay in shared memory, and rows of small calls are stored from registers.
// SW sending and XW expanding warps with SD and XD stages each.
constexpr int kIdxBytes = 16 << 10, kStoreTokens = 512;
template <bool EARLY, int SW, int SD, int XW, int XD>
__global__ void __launch_bounds__((SW + XW) * 32, 1)
    dispatch_whole(const __grid_constant__ Args a) {
  extern __shared__ __align__(128) char smem[];
  __shared__ ShX sh;
  __shared__ __align__(8) u64 full[XW][XD];
  __shared__ int places[XW][XD][K];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, cta = blockIdx.x, G = gridDim.x,
            T = a.T, me = a.me;
  const int lo_ = (int)((i64)T * cta / G), hi_ = (int)((i64)T * (cta + 1) / G);
  const int FB = T / (G * SW) >= 16 ? 4 : 1;  // tokens of a block
  if (warp >= SW && lane == 0) {
    for (int s = 0; s < XD; ++s) mbar_init(&full[warp - SW][s], 1);
    mbar_fence();
  }
  pdl_wait();
  pdl_go();
  const u32 call = call_of(a, 0);
  int* idx = EARLY && (hi_ - lo_) * K * 4 <= kIdxBytes
                 ? reinterpret_cast<int*>(smem + (SW * SD + XW * XD) * STAGE)
                 : a.idx + lo_ * K;
  const bool by_stores = EARLY && T <= kStoreTokens && FB == 1;
  auto quantize_row = [&](int t, char* stage) {
    const char* from = a.tokens + (size_t)t * YB + lane * 16;
    uint4 v[14];
#pragma unroll
    for (int n = 0; n < 14; ++n) v[n] = ld_nc(from + n * 512);
#pragma unroll
    for (int n = 0; n < 14; ++n) quantize(v[n], n, lane, stage);
#pragma unroll
    for (int n = 0; n < 14; ++n) v[n] = ld_nc(from + (n + 14) * 512);
#pragma unroll
    for (int n = 0; n < 14; ++n) quantize(v[n], n + 14, lane, stage);
  };
  const bool ok = find_experts<EARLY>(a, sh, idx, lo_, hi_, call, [&] {
    if (EARLY && warp < SW && lo_ + warp < hi_) quantize_row(lo_ + warp, smem + warp * SD * STAGE);
  });
  if (ok && warp < SW) {
    u32 now[P], due[P];
    int first = 0, due_first = -1;
#pragma unroll
    for (int d = 0; d < P; ++d) now[d] = due[d] = 0;
    auto record = [&] {  // the block that is due is complete at the peers
      if (lane == 0) {
        fence_sys();
#pragma unroll
        for (int d = 0; d < P; ++d)
          if (d != me) put_word(at<u64>(a, d, a.l.rec) + (size_t)me * T + due_first, due[d], call);
      }
      due_first = -1;
    };
    int j = 0;
    for (int t = lo_ + warp; t < hi_; t += SW, ++j) {
      char* stage = smem + (warp * SD + j % SD) * STAGE;
      const int id = lane < K ? a.ids[t * K + lane] : -1;
      const int ix = lane < K ? idx[(t - lo_) * K + lane] : 0;
      const float w = lane < K ? a.wts[t * K + lane] : 0;
      if (!EARLY || j > 0) {
        if (lane == 0) bulk_wait_read<SD - 1>();
        __syncwarp();
        quantize_row(t, stage);
      }
      proxy_fence();
      __syncwarp();
      if (j % FB == 0) first = t;
#pragma unroll
      for (int q = 1; q < P; ++q) {
        const int d = (me + q) % P;
        const bool here = id >= 0 && id / EL == d;
        if (!__any_sync(~0u, here)) continue;
        const size_t slot = (size_t)me * T + t;
        if (by_stores) {
          char *codes = at<char>(a, d, a.l.codes) + slot * CB,
               *scales = at<char>(a, d, a.l.scales) + slot * SB;
#pragma unroll
          for (int n = 0; n < 14; ++n)
            st16(codes + n * 512 + lane * 16,
                 *reinterpret_cast<const uint4*>(stage + n * 512 + lane * 16));
          if (lane < 14)
            st16(scales + lane * 16, *reinterpret_cast<const uint4*>(stage + CB + lane * 16));
        } else if (lane == 0) {
          bulk_store(at<char>(a, d, a.l.codes) + slot * CB, stage, CB);
          bulk_store(at<char>(a, d, a.l.scales) + slot * SB, stage + CB, SB);
        }
        if (lane < K)
          at<uint2>(a, d, a.l.meta)[slot * K + lane] =
              make_uint2(here ? (u32)(id - d * EL) << 24 | ix : ~0u, here ? __float_as_uint(w) : 0);
#pragma unroll
        for (int x = 0; x < P; ++x)
          if (x == d) now[x] |= 1u << (j % FB);
      }
      if (by_stores) {
        due_first = t;
#pragma unroll
        for (int d = 0; d < P; ++d) due[d] = now[d], now[d] = 0;
        __syncwarp();
        record();
      }
      const bool mine = id >= 0 && id / EL == me;
      const int place = mine ? sh.ebase[id] + ix : -1;  // ebase[me * EL + id - me * EL]
      if (lane < K) {
        a.places[((size_t)me * T + t) * K + lane] = place;
        a.pw[((size_t)me * T + t) * K + lane] = mine ? w : 0;
      }
      scatter_row(a, stage, place, lane);
      if (lane == 0) bulk_commit();
      __syncwarp();
      if (due_first >= 0) {
        if (lane == 0) bulk_wait<1>();
        record();
      }
      if (!by_stores && (j % FB == FB - 1 || t + SW >= hi_)) {
        due_first = first;
#pragma unroll
        for (int d = 0; d < P; ++d) {
          due[d] = now[d];
          now[d] = 0;
        }
      }
    }
    if (lane == 0) bulk_wait<0>();
    __syncwarp();
    if (due_first >= 0) record();
  } else if (ok) {
    const int x = warp - SW;
    char* ring = smem + (SW * SD + x * XD) * STAGE;
    constexpr int PER = (SW + XW - 1) / XW;
    const int most = (hi_ - lo_ + SW - 1) / SW, M = (most + FB - 1) / FB * (P - 1) * PER;
    int m = 0, src = 0, t0 = 0, t = 0;
    u32 bits = 0;
    bool fine = true;
    auto advance = [&](bool block) {  // the next landed row: (src, t)
      for (;;) {
        if (bits) {
          t = t0 + (__ffs(bits) - 1) * SW;
          bits &= bits - 1;
          return true;
        }
        if (m >= M || !fine) return false;
        const int b = m / ((P - 1) * PER), w = m % PER * XW + x;
        t0 = lo_ + w + b * FB * SW;
        src = (me + 1 + m / PER % (P - 1)) % P;
        if (w >= SW || t0 >= hi_) {
          ++m;
          continue;
        }
        u32 got = 0, v = 0;
        if (lane == 0) {
          const u64* p = at<u64>(a, me, a.l.rec) + (size_t)src * T + t0;
          Spin s(a.err);
          for (;;) {
            const u64 word = ld_acq(p);
            if ((u32)(word >> 32) == call) {
              got = 1;
              v = (u32)word;
              break;
            }
            if (!block) break;
            if (s.expired(42)) {
              got = 2;
              break;
            }
          }
          proxy_fence_global();
        }
        got = __shfl_sync(~0u, got, 0);
        v = __shfl_sync(~0u, v, 0);
        if (got == 2) fine = false;
        if (got != 1) return false;
        ++m;
        bits = v;
        for (int k = 0; k < FB; ++k)
          if (!(v >> k & 1) && t0 + k * SW < hi_ && lane < K)
            a.places[((size_t)src * T + t0 + k * SW) * K + lane] = -1;
      }
    };
    int head = 0, tail = 0;
    for (;;) {
      while (head - tail < XD - 1 && advance(head == tail)) {
        const int st = head % XD;
        const size_t slot = (size_t)src * T + t;
        if (lane == 0) {
          bulk_wait_read<1>();
          mbar_expect(&full[x][st], CB + SB);
          bulk_load(ring + st * STAGE, at<char>(a, me, a.l.codes) + slot * CB, CB, &full[x][st]);
          bulk_load(ring + st * STAGE + CB, at<char>(a, me, a.l.scales) + slot * SB, SB,
                    &full[x][st]);
        }
        if (lane < K) {
          const uint2 mv = at<uint2>(a, me, a.l.meta)[slot * K + lane];
          const int place =
              mv.x == ~0u ? -1 : sh.ebase[src * EL + (mv.x >> 24)] + (int)(mv.x & 0xffffff);
          places[x][st][lane] = place;
          a.places[slot * K + lane] = place;
          a.pw[slot * K + lane] = __uint_as_float(mv.y);
        }
        __syncwarp();
        ++head;
      }
      if (head == tail) break;
      const int st = tail % XD;
      if (!wait_bar(&full[x][st], tail / XD & 1, a.err, 43)) fine = false;
      fine = __all_sync(~0u, fine);
      if (!fine) break;
      scatter_row(a, ring + st * STAGE, lane < K ? places[x][st][lane] : -1, lane);
      if (lane == 0) bulk_commit();
      __syncwarp();
      ++tail;
    }
    if (lane == 0) bulk_wait<0>();
  }
  count_end(a, 0);
}
