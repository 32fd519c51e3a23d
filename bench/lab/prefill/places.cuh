// SPDX-License-Identifier: Apache-2.0
//
// places.cuh: final places of rows by the counts of all ranks, and the flags after their stores.
#pragma once

#include "common.cuh"

struct Sh {
  int before[P], total[P], base[P], run[P], cnt[P * P], wc[32][P];
};

// Counts, publishes the counts of this rank, waits for those of all ranks. place[t - lo][d] becomes
// the row of token t at rank d, or -1. False: a wait ran out. `direct`: each CTA counts all tokens,
// else each counts [lo, hi) and reads the others' counts. ALL: CTAs of all ranks read the counts of
// all CTAs, without a sum by rank between.
template <bool ALL>
__device__ inline bool find_places(const Args& a, Sh& sh, int* place, int lo_, int hi_, u32 call) {
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, nt = blockDim.x, cta = blockIdx.x,
            G = gridDim.x, T = a.T;
  const bool direct = T <= kDirect;
  if (tid < P) sh.before[tid] = sh.total[tid] = sh.run[tid] = 0;
  __syncthreads();
  auto publish = [&] {
    if (cta == 0 && tid < P * P && tid / P != a.me)
      put_word(at<u64>(a, tid / P, a.l.cnt) + a.me * P + tid % P, sh.total[tid % P], call);
  };
  if (direct) {
    for (int t0 = 0; t0 < T; t0 += nt) {
      const int t = t0 + tid, lim = lo_ - (t - lane);
      const u32 m = t < T ? ranks_of(a.ids + t * K) : 0, below = lim >= 32  ? ~0u
                                                                 : lim <= 0 ? 0u
                                                                            : (1u << lim) - 1;
#pragma unroll
      for (int d = 0; d < P; ++d) {
        const u32 b = __ballot_sync(~0u, m >> d & 1);
        if (lane == 0 && b) {
          atomicAdd(&sh.total[d], __popc(b));
          if (b & below) atomicAdd(&sh.before[d], __popc(b & below));
        }
      }
    }
    __syncthreads();
    publish();
  }
  for (int t0 = lo_; t0 < hi_; t0 += nt) {
    const int t = t0 + tid;
    const u32 m = t < hi_ ? ranks_of(a.ids + t * K) : 0;
    int pre[P];
#pragma unroll
    for (int d = 0; d < P; ++d) {
      const u32 b = __ballot_sync(~0u, m >> d & 1);
      pre[d] = __popc(b & ((1u << lane) - 1));
      if (lane == 0) sh.wc[warp][d] = __popc(b);
    }
    __syncthreads();
    if (t - lane < hi_)
#pragma unroll
      for (int d = 0; d < P; ++d) {
        int off = sh.run[d];
        for (int w = 0; w < warp; ++w) off += sh.wc[w][d];
        if (t < hi_) place[(t - lo_) * P + d] = m >> d & 1 ? off + pre[d] : -1;
      }
    __syncthreads();
    if (tid < P) {
      int s = sh.run[tid];
      for (int w = 0; w < nt / 32; ++w) s += sh.wc[w][tid];
      sh.run[tid] = s;
    }
    __syncthreads();
  }
  bool ok = true;
  if (!direct && ALL) {
    if (tid < P * P)
      put_word(at<u64>(a, tid / P, a.l.ctaall) + (a.me * MAXG + cta) * P + tid % P, sh.run[tid % P],
               call);
    u32 sums[P], mine = 0;
#pragma unroll
    for (int s = 0; s < P; ++s) {
      sums[s] = 0;
      for (int i = tid; i < G * P && ok; i += nt) {  // nt is a multiple of P: one destination
        u32 v;
        ok = wait_word(at<u64>(a, a.me, a.l.ctaall) + s * MAXG * P + i, call, v, a.err, 13);
        sums[s] += v;
        if (s == a.me && i / P < cta) mine += v;
      }
    }
    if (tid < P * P) sh.cnt[tid] = 0;
    __syncthreads();
#pragma unroll
    for (int s = 0; s < P; ++s) {
      u32 tot = sums[s], bef = s == a.me ? mine : 0;
#pragma unroll
      for (int o = 16; o >= P; o >>= 1) {
        tot += __shfl_xor_sync(~0u, tot, o);
        bef += __shfl_xor_sync(~0u, bef, o);
      }
      if (lane < P) {
        atomicAdd(&sh.cnt[s * P + lane], tot);
        atomicAdd(&sh.before[lane], bef);
      }
    }
    __syncthreads();
    if (cta == 0 && tid < P * P) a.cnt[tid] = sh.cnt[tid];
  } else if (!direct) {
    if (tid < P) put_word(a.ctacnt + cta * P + tid, sh.run[tid], call);
    int tot = 0, bef = 0;
    for (int i = tid; i < G * P && ok;
         i += nt) {  // nt is a multiple of P: one thread, one destination
      u32 v;
      ok = wait_word(a.ctacnt + i, call, v, a.err, 10);
      tot += v;
      if (i / P < cta) bef += v;
    }
#pragma unroll
    for (int o = 16; o >= P; o >>= 1) {
      tot += __shfl_xor_sync(~0u, tot, o);
      bef += __shfl_xor_sync(~0u, bef, o);
    }
    if (lane < P) {
      atomicAdd(&sh.total[lane], tot);
      atomicAdd(&sh.before[lane], bef);
    }
    __syncthreads();
    publish();
  }
  if ((direct || !ALL) && tid < P * P) {
    u32 v = sh.total[tid % P];
    if (tid / P != a.me) ok &= wait_word(at<u64>(a, a.me, a.l.cnt) + tid, call, v, a.err, 11);
    sh.cnt[tid] = v;
    if (cta == 0) a.cnt[tid] = v;
  }
  if (!__syncthreads_and(ok)) return false;
  if (tid < P) {
    int b = sh.before[tid];
    for (int s = 0; s < a.me; ++s) b += sh.cnt[s * P + tid];
    sh.base[tid] = b;
  }
  __syncthreads();
  for (int i = tid; i < (hi_ - lo_) * P; i += nt)
    if (place[i] >= 0) place[i] += sh.base[i % P];
  __syncthreads();
  for (int i = tid; i < (hi_ - lo_) * P; i += nt)
    a.rowof[lo_ * P + i] = place[i];  // neighbours that share a token write the same
  return true;
}

// After the row stores of all threads: tells the peers, then waits for them. LAST: one flag per
// rank by its last CTA; otherwise one flag per CTA, for which the CTA of the same number waits.
template <bool LAST>
__device__ inline void tell_and_wait(const Args& a, u32 call) {
  const int tid = threadIdx.x;
  __shared__ u32 last;
  __syncthreads();
  if constexpr (LAST) {
    if (tid == 0) {
      fence_sys();
      const u32 old = add_one_acq_rel(a.done);
      last = (old + 1) % gridDim.x == 0;
    }
    __syncthreads();
    if (last && tid < P && tid != a.me) {
      fence_sys();
      st_rlx(at<u32>(a, tid, a.l.flag) + a.me * MAXG, call);
    }
    if (blockIdx.x == 0 && tid < P && tid != a.me) {
      wait_flag(at<u32>(a, a.me, a.l.flag) + tid * MAXG, call, a.err, 20);
      fence_sys();
    }
  } else {
    if (tid < P && tid != a.me) {
      fence_sys();
      st_rlx(at<u32>(a, tid, a.l.flag) + a.me * MAXG + blockIdx.x, call);
      wait_flag(at<u32>(a, a.me, a.l.flag) + tid * MAXG + blockIdx.x, call, a.err, 21);
      fence_sys();
    }
  }
}
