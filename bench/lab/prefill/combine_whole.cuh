// SPDX-License-Identifier: Apache-2.0
//
// combine_whole.cuh: weighted sums of expanded rows, pushed or left to be pulled (C3).
#pragma once

#include "combine.cuh"

// C3: partial sums of expanded bf16 rows, bf16 on the way back. Rows of peers and own tokens
// alternate, own tokens `lag` positions behind. A warp handles 1 / PC of a row; one flag per row
// and warp. PULL: partial sums stay in the own window.
template <bool PULL, int PC>
__global__ void __launch_bounds__(512, 1) combine_whole(const __grid_constant__ Args a) {
  constexpr int U = 4, CH = 7 / PC;
  const int lane = threadIdx.x & 31, nw = blockDim.x >> 5, T = a.T, me = a.me;
  pdl_wait();
  pdl_go();
  const u32 call = call_of(a, 1);
  const int step = nw * gridDim.x, lag = min(T, step * 3 / (2 * P * PC) + 1),
            last = (T + lag) * P * PC;
  int q = (threadIdx.x >> 5) * gridDim.x + blockIdx.x, pl_next = -1, s_next, t_next;
  float w_next = 0;
  auto fetch = [&] {  // of item q: source rank and token, or t -1
    pl_next = -1;
    t_next = -1;
    s_next = me;
    if (q >= last) return;
    const int c = q / PC % P, pos = q / PC / P;
    if (c < P - 1) {
      s_next = (me + 1 + c) % P;
      if (pos < T) t_next = pos;
    } else
      t_next = pos - lag;
    if (t_next < 0) {
      t_next = -1;
      return;
    }
    if (lane < K) {
      const size_t i = ((size_t)s_next * T + t_next) * K + lane;
      pl_next = a.places[i];
      w_next = a.pw[i];
    }
  };
  fetch();
  bool fine = true;
  while (q < last && fine) {
    const int pl = pl_next, s = s_next, t = t_next, part = q % PC;
    const float w = w_next;
    q += step;
    fetch();
    if (t < 0) continue;
    const u32 m = __ballot_sync(~0u, pl >= 0);
    const u32 ranks = s == me ? ranks_of(a.ids + t * K) : 0;
    if (s != me && !m) continue;
    bool waited = false;
    for (int c = part * CH; c < (part + 1) * CH && fine; ++c) {
      const int off = c * U * 512 + lane * 16;
      float f[U][8];
#pragma unroll
      for (int u = 0; u < U; ++u)
#pragma unroll
        for (int i = 0; i < 8; ++i) f[u][i] = 0;
      for (u32 bits = m; bits;) {
        const int k0 = __ffs(bits) - 1;
        bits &= bits - 1;
        const bool two = bits != 0;
        const int k1 = two ? __ffs(bits) - 1 : k0;
        bits &= bits - 1;
        const float w0 = __shfl_sync(~0u, w, k0), w1 = __shfl_sync(~0u, w, k1);
        const char *y0 = a.y + (size_t)__shfl_sync(~0u, pl, k0) * YB + off,
                   *y1 = a.y + (size_t)__shfl_sync(~0u, pl, k1) * YB + off;
        uint4 v[2][U];
#pragma unroll
        for (int u = 0; u < U; ++u) v[0][u] = ld_nc(y0 + u * 512);
        if (two)
#pragma unroll
          for (int u = 0; u < U; ++u) v[1][u] = ld_nc(y1 + u * 512);
        auto add = [&](const uint4& x, float wk, float(&g)[8]) {
          const u32 e[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            g[2 * i] = __fmaf_rn(wk, lo(e[i]), g[2 * i]);
            g[2 * i + 1] = __fmaf_rn(wk, hi(e[i]), g[2 * i + 1]);
          }
        };
#pragma unroll
        for (int u = 0; u < U; ++u) add(v[0][u], w0, f[u]);
        if (two)
#pragma unroll
          for (int u = 0; u < U; ++u) add(v[1][u], w1, f[u]);
      }
      uint4 own[U];
#pragma unroll
      for (int u = 0; u < U; ++u)
        own[u] = make_uint4(bf2(f[u][0], f[u][1]), bf2(f[u][2], f[u][3]), bf2(f[u][4], f[u][5]),
                            bf2(f[u][6], f[u][7]));
      if (s != me) {
        char* to = PULL ? at<char>(a, me, a.l.res) + ((size_t)s * T + t) * YB
                        : at<char>(a, s, a.l.slots) + ((size_t)t * P + me) * YB;
#pragma unroll
        for (int u = 0; u < U; ++u) st16(to + off + u * 512, own[u]);
      } else {
        if (!waited)
#pragma unroll
          for (int p = 0; p < P; ++p)
            if (p != me && (ranks >> p & 1) && fine)
              fine = wait_flag(at<u32>(a, me, a.l.wflag) + ((size_t)p * T + t) * 7 + part, call,
                               a.err, 44);
        waited = true;
        fine = __all_sync(~0u, fine);
        if (!fine) break;
        uint4 v[P][U];
#pragma unroll
        for (int p = 0; p < P; ++p)
          if (p != me && (ranks >> p & 1)) {
            const char* from = PULL ? at<char>(a, p, a.l.res) + ((size_t)me * T + t) * YB
                                    : at<char>(a, me, a.l.slots) + ((size_t)t * P + p) * YB;
#pragma unroll
            for (int u = 0; u < U; ++u) v[p][u] = ld16(from + off + u * 512);
          }
#pragma unroll
        for (int u = 0; u < U; ++u) {
          Sum sum;
#pragma unroll
          for (int p = 0; p < P; ++p)
            if (ranks >> p & 1) sum.add(p == me ? own[u] : v[p][u]);
          st16(a.out + (size_t)t * YB + off + u * 512, sum.rounded());
        }
      }
    }
    if (s != me) {
      __syncwarp();
      if (lane == 0) {
        fence_sys();
        st_rlx(at<u32>(a, s, a.l.wflag) + ((size_t)me * T + t) * 7 + part, call);
      }
    }
  }
  count_end(a, 1);
}
