// SPDX-License-Identifier: Apache-2.0
//
// combine.cuh: result rows pulled by 16-byte loads (C1a) or bulk loads (C1b), or pushed into slots
// (C2).
#pragma once

#include "common.cuh"

// One flag per rank says that its result rows are complete (the kernel ahead wrote them). All CTAs
// wait for all ranks.
__device__ inline bool announce_results(const Args& a, u32 call) {
  const int tid = threadIdx.x;
  bool ok = true;
  if (tid < P && tid != a.me) {
    if (blockIdx.x == 0) {
      fence_sys();
      st_rlx(at<u32>(a, tid, a.l.ready) + a.me * 32, call);
    }
    ok = wait_flag(at<u32>(a, a.me, a.l.ready) + tid * 32, call, a.err, 30);
  }
  return __syncthreads_and(ok);
}
struct Sum {  // 8 elements; starts with the first row, so that -0 stays
  float f[8];
  bool any = false;
  __device__ void add(uint4 v) {
    const u32 w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      f[2 * i] = any ? f[2 * i] + lo(w[i]) : lo(w[i]);
      f[2 * i + 1] = any ? f[2 * i + 1] + hi(w[i]) : hi(w[i]);
    }
    any = true;
  }
  __device__ uint4 rounded() const {
    return any ? make_uint4(bf2(f[0], f[1]), bf2(f[2], f[3]), bf2(f[4], f[5]), bf2(f[6], f[7]))
               : make_uint4(0, 0, 0, 0);
  }
};

// C1a: pulls with 16-byte loads; a warp handles U * 512 bytes of a token.
template <int U>
__global__ void __launch_bounds__(1024, 1) combine_pull(const __grid_constant__ Args a) {
  constexpr int PC = 28 / U;
  const int lane = threadIdx.x & 31, nw = blockDim.x >> 5;
  pdl_wait();
  pdl_go();
  const u32 call = call_of(a, 1);
  int i = (threadIdx.x >> 5) * gridDim.x + blockIdx.x;
  int next[P];
  auto rows = [&] {
#pragma unroll
    for (int p = 0; p < P; ++p) next[p] = i < a.T * PC ? a.rowof[i / PC * P + p] : -1;
  };
  rows();
  if (announce_results(a, call)) {
    while (i < a.T * PC) {
      const int t = i / PC, off = (i % PC) * U * 512 + lane * 16;
      int row[P];
      uint4 v[P][U];
#pragma unroll
      for (int p = 0; p < P; ++p) row[p] = next[p];
      i += nw * gridDim.x;
      rows();
#pragma unroll
      for (int p = 0; p < P; ++p)
        if (row[p] >= 0)
#pragma unroll
          for (int u = 0; u < U; ++u)
            v[p][u] = ld16(at<char>(a, p, a.l.res) + (size_t)row[p] * YB + off + u * 512);
#pragma unroll
      for (int u = 0; u < U; ++u) {
        Sum s;
#pragma unroll
        for (int p = 0; p < P; ++p)
          if (row[p] >= 0) s.add(v[p][u]);
        st16(a.out + (size_t)t * YB + off + u * 512, s.rounded());
      }
    }
  }
  count_end(a, 1);
}

// C1b: one lane pulls rows by bulk copies into a ring, 14 warps sum (2 vectors per thread and row).
constexpr int kRing = 15;
__global__ void __launch_bounds__(480, 1) combine_pull_bulk(const __grid_constant__ Args a) {
  extern __shared__ __align__(128) char smem[];
  __shared__ __align__(8) u64 full[kRing], empty[kRing];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  if (tid == 0) {
    for (int s = 0; s < kRing; ++s) {
      mbar_init(&full[s], 1);
      mbar_init(&empty[s], 14);
    }
    mbar_fence();
  }
  pdl_wait();
  pdl_go();
  const u32 call = call_of(a, 1);
  if (announce_results(a, call)) {
    int s = 0;
    u32 ph = 0;
    bool fine = true;
    proxy_fence_global();  // bulk loads see what the flags promise
    for (int t0 = blockIdx.x; t0 < a.T && fine;
         t0 += gridDim.x * 32) {  // a lane holds the rows of one token
      const int tl = t0 + lane * gridDim.x;
      int row[P];
#pragma unroll
      for (int p = 0; p < P; ++p) row[p] = tl < a.T ? a.rowof[tl * P + p] : -1;
      const int n = min(32, (a.T - t0 + (int)gridDim.x - 1) / (int)gridDim.x);
      for (int j = 0; j < n; ++j) {
        const int t = t0 + j * gridDim.x;
        Sum x, y;
#pragma unroll
        for (int p = 0; p < P; ++p) {
          const int r = __shfl_sync(~0u, row[p], j);
          if (r < 0) continue;
          if (warp == 14) {
            if (lane == 0 && fine) {
              fine = wait_bar(&empty[s], ph ^ 1, a.err, 31);
              if (fine) {
                mbar_expect(&full[s], YB);
                bulk_load(smem + s * YB, at<char>(a, p, a.l.res) + (size_t)r * YB, YB, &full[s]);
              }
            }
          } else {
            if (fine) fine = wait_bar(&full[s], ph, a.err, 32);
            const char* from = smem + s * YB + tid * 16;
            x.add(*reinterpret_cast<const uint4*>(from));
            y.add(*reinterpret_cast<const uint4*>(from + 448 * 16));
            __syncwarp();
            if (lane == 0) mbar_arrive(&empty[s]);
          }
          if (++s == kRing) {
            s = 0;
            ph ^= 1;
          }
        }
        if (warp < 14) {
          st16(a.out + (size_t)t * YB + tid * 16, x.rounded());
          st16(a.out + (size_t)t * YB + (tid + 448) * 16, y.rounded());
        }
      }
      fine = __all_sync(~0u, fine);
    }
  }
  count_end(a, 1);
}

// C2: N issuing warps push result rows into slots (token, rank) at their owners, one flag per B
// rows; the other warps sum. PC: how many warps share a token.
template <int B, int PC, int N>
__global__ void __launch_bounds__(640, 1) combine_push(const __grid_constant__ Args a) {
  extern __shared__ __align__(128) char smem[];
  constexpr int D = 3, U = 4;
  __shared__ __align__(8) u64 full[N][D];
  __shared__ int cnt[P * P];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, nw = (blockDim.x >> 5) - N,
            me = a.me;
  if (warp < N && lane == 0) {
    for (int s = 0; s < D; ++s) mbar_init(&full[warp][s], 1);
    mbar_fence();
  }
  pdl_wait();
  pdl_go();
  const u32 call = call_of(a, 1);
  if (tid < P * P) cnt[tid] = a.cnt[tid];
  __syncthreads();
  if (warp < N) {
    char* ring = smem + warp * D * YB;
    proxy_fence_global();  // bulk loads see the rows that the kernel ahead stored
    const int stride = gridDim.x * N;
    int most = 0;
    for (int s = 0; s < P; ++s)
      if (s != me) most = max(most, cnt[s * P + me]);
    const int blocks =
        (most + B - 1) / B * (P - 1);  // block g: peer g % (P - 1), its rows [g / (P - 1) * B, ...)
    auto range = [&](int g, int& peer, int& r0, int& n) {
      peer = (me + 1 + g % (P - 1)) % P;
      const int j = g / (P - 1) * B;
      r0 = j;
      for (int s = 0; s < peer; ++s) r0 += cnt[s * P + me];
      n = g < blocks ? max(0, min(B, cnt[peer * P + me] - j)) : 0;
    };
    auto tokens = [&](int g) {
      int p, r0, n;
      range(g, p, r0, n);
      return lane < n ? at<int>(a, me, a.l.origin)[(size_t)a.r * a.cap + r0 + lane] : 0;
    };
    // Load cursor: row lk of block lg.
    int lg = warp * gridDim.x + blockIdx.x, lk = 0, ls = 0, lp, lr, ln;
    range(lg, lp, lr, ln);
    auto load = [&] {
      while (lg < blocks && lk >= ln) {
        lg += stride;
        lk = 0;
        range(lg, lp, lr, ln);
      }
      if (lg >= blocks) return;
      if (lane == 0) {
        mbar_expect(&full[warp][ls], YB);
        bulk_load(ring + ls * YB, at<char>(a, me, a.l.res) + (size_t)(lr + lk) * YB, YB,
                  &full[warp][ls]);
      }
      ++lk;
      if (++ls == D) ls = 0;
    };
    for (int i = 0; i < D; ++i) load();
    int ss = 0, held = 0, last = -1;
    u32 ph = 0;
    bool fine = true;
    int tok = tokens(warp * gridDim.x + blockIdx.x);
    auto flag = [&](int g) {  // rows of block g are complete at their owner
      if (g < 0) return;
      const int p = (me + 1 + g % (P - 1)) % P;
      if (lane == 0) {
        fence_sys();
        st_rlx(at<u32>(a, p, a.l.blk) + (size_t)me * a.T + g / (P - 1), call);
      }
    };
    for (int g = warp * gridDim.x + blockIdx.x; g < blocks && fine; g += stride) {
      int p, r0, n;
      range(g, p, r0, n);
      const int next = tokens(g + stride);
      for (int k = 0; k < B; ++k) {
        if (k < n && fine) {
          const int t = __shfl_sync(~0u, tok, k);
          if (lane == 0) {
            fine = wait_bar(&full[warp][ss], ph, a.err, 33);
            if (fine)
              bulk_store(at<char>(a, p, a.l.slots) + ((size_t)t * P + me) * YB, ring + ss * YB, YB);
          }
          fine = __shfl_sync(~0u, (int)fine, 0);
          if (++ss == D) {
            ss = 0;
            ph ^= 1;
          }
        }
        if (lane == 0) {
          bulk_commit();
          bulk_wait_read<1>();
        }  // all but the newest group have been read
        __syncwarp();
        if (k < n) {
          if (held) load();
          held = 1;
        }
      }
      if (lane == 0) bulk_wait<B>();
      flag(last);
      last = n > 0 ? g : -1;
      tok = next;
    }
    if (lane == 0) bulk_wait<0>();
    if (fine) flag(last);
  } else {
    int mine[P];
#pragma unroll
    for (int p = 0; p < P; ++p) {
      mine[p] = 0;
      for (int s = 0; s < me; ++s) mine[p] += cnt[s * P + p];
    }
    bool fine = true;
    int i = (warp - N) * gridDim.x + blockIdx.x, next[P];
    auto rows = [&] {
#pragma unroll
      for (int p = 0; p < P; ++p) next[p] = i < a.T * PC ? a.rowof[i / PC * P + p] : -1;
    };
    rows();
    while (i < a.T * PC && fine) {
      const int t = i / PC, part = i % PC;
      int row[P];
#pragma unroll
      for (int p = 0; p < P; ++p) row[p] = next[p];
      i += nw * gridDim.x;
      rows();
#pragma unroll
      for (int p = 0; p < P; ++p)
        if (p != me && row[p] >= 0 && fine)
          fine = wait_flag(at<u32>(a, me, a.l.blk) + (size_t)p * a.T + (row[p] - mine[p]) / B, call,
                           a.err, 34);
      if (!fine) break;
      for (int c = part * (7 / PC); c < (part + 1) * (7 / PC); ++c) {
        const int off = c * U * 512 + lane * 16;
        uint4 v[P][U];
#pragma unroll
        for (int p = 0; p < P; ++p)
          if (row[p] >= 0) {
            const char* from = p == me ? at<char>(a, me, a.l.res) + (size_t)row[p] * YB
                                       : at<char>(a, me, a.l.slots) + ((size_t)t * P + p) * YB;
#pragma unroll
            for (int u = 0; u < U; ++u) v[p][u] = ld16(from + off + u * 512);
          }
#pragma unroll
        for (int u = 0; u < U; ++u) {
          Sum s;
#pragma unroll
          for (int p = 0; p < P; ++p)
            if (row[p] >= 0) s.add(v[p][u]);
          st16(a.out + (size_t)t * YB + off + u * 512, s.rounded());
        }
      }
    }
  }
  count_end(a, 1);
}
