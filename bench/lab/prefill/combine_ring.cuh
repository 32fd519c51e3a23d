// SPDX-License-Identifier: Apache-2.0
//
// combine_ring.cuh: weighted sums of expanded rows through a ring in shared memory (C3.ring). Roles
// by warp: 16 sum, one loads expanded rows, one loads rows that peers returned, one stores flags.
#pragma once

#include "common.cuh"

constexpr int kSlotStages = P == 2 ? 3 : 2 * P - 3 > 7 ? 7 : 2 * P - 3;  // of returned rows
constexpr int kRowStages = 15 - kSlotStages;                             // of expanded rows
constexpr int kGroups = 4;   // of 4 warps, one on each quarter of an SM; a group sums one item
constexpr int kItems = 16;   // items whose headers are in shared memory
constexpr int kQuarter = 7;  // vectors per lane: a warp sums a quarter of a row
constexpr int kRingThreads = (kGroups * 4 + 3) * 32;

// An item is the sum of one token's rows at this rank: for a peer's token the partial sum that goes
// to its owner, for an own token the result. Rounds of a CTA: P - 1 peers' tokens, then an own one
// of `lag` rounds earlier.
struct RingItem {
  float w[K];
  char* to;
  u32* flag;      // at the owner, null for own tokens
  int rows;       // expanded rows
  u32 ranks;      // own tokens: ranks that return a row, this one included
  u32 row, slot;  // its first expanded and returned row among those of the CTA
};
struct RingWalk {
  int cta, G, T, me, lag, rounds;
  __device__ RingWalk(const Args& a, int lag_)
      : cta(blockIdx.x),
        G(gridDim.x),
        T(a.T),
        me(a.me),
        lag(lag_),
        rounds(cta < T ? (T - cta + G - 1) / G : 0) {}
  __device__ int items() const { return rounds ? (rounds + lag) * P : 0; }
  __device__ bool find(int j, int& s, int& t) const {  // source rank and token of item j
    const int round = j / P, c = j % P;
    s = (me + 1 + c) % P;  // the last of a round is this rank
    t = cta + (c == P - 1 ? round - lag : round) * G;
    return t >= 0 && t < T;
  }
};
struct RingShared {
  u64 full[kRowStages], empty[kRowStages], slot_full[kSlotStages], slot_empty[kSlotStages];
  // By item: header written and rows on their way; returned rows on their way (own tokens); stored;
  // header free. The first two also say that the use before of each stage is over, so that a parity
  // suffices although the groups do not wait in the order of the rows.
  u64 ready[kItems], returned[kItems], stored[kItems], free[kItems];
  RingItem item[kItems];
};

__device__ inline void add_weighted(float (&f)[8], uint4 v, float w) {
  const u32 e[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    f[2 * i] = __fmaf_rn(w, lo(e[i]), f[2 * i]);
    f[2 * i + 1] = __fmaf_rn(w, hi(e[i]), f[2 * i + 1]);
  }
}
__device__ inline void widen(float (&f)[8], uint4 v) {
  const u32 e[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) f[2 * i] = lo(e[i]), f[2 * i + 1] = hi(e[i]);
}
__device__ inline void add_row(float (&f)[8], uint4 v) {
  const u32 e[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    f[2 * i] += lo(e[i]);
    f[2 * i + 1] += hi(e[i]);
  }
}
__device__ inline uint4 rounded(const float (&f)[8]) {
  return make_uint4(bf2(f[0], f[1]), bf2(f[2], f[3]), bf2(f[4], f[5]), bf2(f[6], f[7]));
}
template <int N>
struct Cursor {  // a stage of a ring and the parity of its use
  int stage;
  u32 phase;
  __device__ explicit Cursor(u32 row) : stage(row % N), phase(row / N & 1) {}
  __device__ void next() {
    if (++stage == N) stage = 0, phase ^= 1;
  }
};
// The same for warps that sum: addresses of the stage and of its barriers.
template <int N>
struct Reader {
  Shared data, full;  // the barrier that frees the stage follows N words later
  int left;           // stages to the end of the ring
  u32 phase;
  __device__ Reader(Shared ring, Shared bars, u32 row) {
    const int stage = row % N;
    data = ring + stage * YB, full = bars + stage * 8, left = N - stage, phase = row / N & 1;
  }
  __device__ Shared empty() const { return full + N * 8; }
  __device__ void next() {
    data += YB, full += 8;
    if (--left == 0) data -= N * YB, full -= N * 8, left = N, phase ^= 1;
  }
};

// The warp that loads expanded rows. Lanes hold the choices of 4 items, those of the next 4 are on
// their way.
__device__ inline void load_rows(const Args& a, RingShared& sh, char* ring, const RingWalk& walk,
                                 u32 call) {
  static_assert(K == 8);
  const int lane = threadIdx.x & 31, i = lane / K, k = lane % K, items = walk.items();
  int place = -1, id = -1;
  float w = 0;
  auto fetch = [&](int j) {
    place = id = -1;
    int s, t;
    if (j >= items || !walk.find(j, s, t)) return;
    const size_t at = ((size_t)s * a.T + t) * K + k;
    place = a.places[at];
    w = a.pw[at];
    if (s == a.me) id = a.ids[t * K + k];
  };
  fetch(i);
  u32 row = 0, slot = 0;
  Cursor<kRowStages> c(0);
  for (int j0 = 0; j0 < items; j0 += 4) {
    const int j = j0 + i, pl = place, rank = id < 0 ? -1 : id / EL;
    const float wk = w;
    fetch(j0 + 4 + i);
    const u32 rows = __ballot_sync(~0u, pl >= 0), mine = rows >> i * K & 0xff;
    u32 ranks = 0, slots = 0, slots_before = 0;  // of the lane's item, of all, of those before it
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const u32 b = __ballot_sync(~0u, rank == p);
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const bool some = (b >> x * K & 0xff) != 0;
        if (x == i && some) ranks |= 1u << p;
        if (p != a.me && some) ++slots, slots_before += x < i;
      }
    }
    bool fine = true;
    if (j < items) {
      fine = wait_bar(&sh.free[j % kItems], (j / kItems & 1) ^ 1, a.err, 60);
      RingItem& it = sh.item[j % kItems];
      if (pl >= 0) it.w[__popc(mine & ((1u << k) - 1))] = wk;
      if (k == 0) {
        int s, t;
        const bool some = walk.find(j, s, t);
        it.to = s == a.me ? a.out + (size_t)t * YB
                          : at<char>(a, s, a.l.slots) + ((size_t)t * P + a.me) * YB;
        it.flag = s == a.me || !mine ? nullptr : at<u32>(a, s, a.l.wflag) + (size_t)a.me * a.T + t;
        it.rows = some && (s == a.me || mine) ? __popc(mine) : -1;  // -1: nothing to store
        it.ranks = ranks;
        it.row = row + __popc(rows & ((1u << i * K) - 1));
        it.slot = slot + slots_before;
      }
    }
    __syncwarp();
    row += __popc(rows);
    slot += slots;
    for (int x = 0; x < 4 && j0 + x < items; ++x) {
      for (u32 bits = rows & 0xffu << x * K; bits; bits &= bits - 1) {
        const int p = __shfl_sync(~0u, pl, __ffs(bits) - 1);
        if (lane == 0 && fine) {
          fine = wait_bar(&sh.empty[c.stage], c.phase ^ 1, a.err, 61);
          mbar_expect(&sh.full[c.stage], YB);
          bulk_load(ring + c.stage * YB, a.y + (size_t)p * YB, YB, &sh.full[c.stage]);
        }
        c.next();
      }
      if (lane == 0) mbar_arrive(&sh.ready[(j0 + x) % kItems]);
    }
    if (!__all_sync(~0u, fine)) return;
  }
}

// The warp that loads rows that peers returned: own tokens in order, flags of 32 tokens at a time.
__device__ inline void load_slots(const Args& a, RingShared& sh, char* ring, const RingWalk& walk,
                                  u32 call) {
  const int lane = threadIdx.x & 31;
  Cursor<kSlotStages> c(0);
  bool fine = true;
  // Item (r + lag) * P + P - 1 is the own token r; those below 0 are none.
  for (int r0 = -walk.lag; r0 < walk.rounds && fine;) {
    const int r = r0 + lane, t = walk.cta + r * walk.G;
    const bool mine = r >= 0 && r < walk.rounds;
    const u32 need = mine ? ranks_of(a.ids + t * K) & ~(1u << a.me) : 0;
    int n = 0;
    Spin spin(a.err);
    while (n == 0 && fine) {
      bool here = r < walk.rounds;
#pragma unroll
      for (int p = 0; p < P; ++p)
        if (need >> p & 1)
          here &= (int)(ld_rlx(at<u32>(a, a.me, a.l.wflag) + (size_t)p * a.T + t) - call) >= 0;
      const u32 missing = ~__ballot_sync(~0u, here);
      n = missing ? __ffs(missing) - 1 : 32;
      if (n == 0) fine = !__any_sync(~0u, spin.expired(62));
    }
    fence_sys();
    __syncwarp();
    proxy_fence_global();
    for (int k = 0; k < n; ++k) {
      const int item = ((r0 + k + walk.lag) * P + P - 1) % kItems,
                use = ((r0 + k + walk.lag) * P + P - 1) / kItems;
      const size_t token = walk.cta + (i64)(r0 + k) * walk.G;
      if (lane == 0 && fine) fine = wait_bar(&sh.ready[item], use & 1, a.err, 68);
      for (u32 bits = __shfl_sync(~0u, need, k); bits; bits &= bits - 1) {
        if (lane == 0 && fine) {
          fine = wait_bar(&sh.slot_empty[c.stage], c.phase ^ 1, a.err, 63);
          mbar_expect(&sh.slot_full[c.stage], YB);
          bulk_load(ring + c.stage * YB,
                    at<char>(a, a.me, a.l.slots) + (token * P + __ffs(bits) - 1) * YB, YB,
                    &sh.slot_full[c.stage]);
        }
        c.next();
      }
      if (lane == 0 && fine) mbar_arrive(&sh.returned[item]);
    }
    fine = __all_sync(~0u, fine);
    r0 += n;
  }
}

// The warp that stores flags: one fence for all items that are stored by then.
__device__ inline void store_flags(const Args& a, RingShared& sh, const RingWalk& walk, u32 call) {
  const int lane = threadIdx.x & 31, items = walk.items();
  for (int j0 = 0; j0 < items;) {
    if (!wait_bar(&sh.stored[j0 % kItems], j0 / kItems & 1, a.err, 64)) return;
    const int j = j0 + lane, x = j % kItems;
    const bool done = lane < kItems && j < items && mbar_test(&sh.stored[x], j / kItems & 1);
    const int n = __ffs(~__ballot_sync(~0u, done)) - 1;
    if (lane < n) {
      u32* flag = sh.item[x].flag;
      if (flag) {
        fence_sys();
        st_rlx(flag, call);
      }
      mbar_arrive(&sh.free[x]);
    }
    __syncwarp();
    j0 += n;
  }
}

__device__ inline void sum_items(const Args& a, RingShared& sh, const char* rows, const char* slots,
                                 const RingWalk& walk) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, items = walk.items(), me = a.me;
  const int off = (warp & 3) * kQuarter * 512 + lane * 16;
  const Shared my_rows = shared_of(rows + off), my_slots = shared_of(slots + off);
  const Shared row_bars = shared_of(sh.full), slot_bars = shared_of(sh.slot_full);
  for (int b = 0, j; b * kGroups < items; ++b) {
    if ((j = b * kGroups + ((warp / 4 - b) & (kGroups - 1))) >= items) continue;  // in turn
    const int x = j % kItems;
    if (!wait_bar(&sh.ready[x], j / kItems & 1, a.err, 65)) return;
    const RingItem& it = sh.item[x];
    const int n = it.rows;
    Reader<kRowStages> c(my_rows, row_bars, it.row);
    float f[kQuarter][8];
#pragma unroll
    for (int u = 0; u < kQuarter; ++u)
#pragma unroll
      for (int i = 0; i < 8; ++i) f[u][i] = 0;
#pragma unroll 1
    for (int k = 0; k < n; ++k) {
      const float w = it.w[k];
      if (!wait_bar(c.full, c.phase, a.err, 66)) return;
#pragma unroll
      for (int u = 0; u < kQuarter; ++u) add_weighted(f[u], lds16(c.data + u * 512), w);
      __syncwarp();
      if (lane == 0) mbar_arrive(c.empty());
      c.next();
    }
    const u32 ranks = it.ranks, others = ranks & ~(1u << me);
    if (j % P == P - 1 && !wait_bar(&sh.returned[x], j / kItems & 1, a.err, 69)) return;
    if (others) {  // rows of ranks in their order, the own sum among them
      const Reader<kSlotStages> first(my_slots, slot_bars, it.slot);
      Reader<kSlotStages> d = first;
      for (u32 bits = others; bits; bits &= bits - 1, d.next())
        if (!wait_bar(d.full, d.phase, a.err, 67)) return;
#pragma unroll
      for (int u = 0; u < kQuarter; ++u) {
        const uint4 own = rounded(f[u]);
#pragma unroll
        for (int i = 0; i < 8; ++i) f[u][i] = -0.f;  // plus the first row, this is the first row
        if (P == 2) {                                // sums of two do not depend on the order
          if (ranks >> me & 1) widen(f[u], own);
          add_row(f[u], lds16(first.data + u * 512));
          continue;
        }
        d = first;
#pragma unroll
        for (int p = 0; p < P; ++p)
          if (p == me) {
            if (ranks >> p & 1) add_row(f[u], own);
          } else if (ranks >> p & 1) {
            add_row(f[u], lds16(d.data + u * 512));
            d.next();
          }
      }
      __syncwarp();
      d = first;
      for (u32 bits = others; bits; bits &= bits - 1, d.next())
        if (lane == 0) mbar_arrive(d.empty());
    }
    if (n >= 0) {
      char* to = it.to + off;
#pragma unroll
      for (int u = 0; u < kQuarter; ++u) st16(to + u * 512, rounded(f[u]));
    }
    __syncwarp();
    if (lane == 0) mbar_arrive(&sh.stored[x]);
  }
}

__global__ void __launch_bounds__(kRingThreads, 1) combine_ring(const __grid_constant__ Args a) {
  extern __shared__ __align__(128) char smem[];
  __shared__ RingShared sh;
  const int tid = threadIdx.x, warp = tid >> 5;
  if (tid < kRowStages) mbar_init(&sh.full[tid], 1), mbar_init(&sh.empty[tid], 4);
  if (tid < kSlotStages) mbar_init(&sh.slot_full[tid], 1), mbar_init(&sh.slot_empty[tid], 4);
  if (tid < kItems)
    mbar_init(&sh.ready[tid], 1), mbar_init(&sh.returned[tid], 1), mbar_init(&sh.stored[tid], 4),
        mbar_init(&sh.free[tid], 1);
  if (tid < 32) mbar_fence();
  __syncthreads();
  pdl_wait();
  pdl_go();
  const u32 call = call_of(a, 1);
  // A row of the round before is on its way while a few items are summed; more lag idles the wire.
  const RingWalk walk(a, min(16, a.T / (int)gridDim.x / 24));
  char* slots = smem + kRowStages * YB;
  if (warp < kGroups * 4) {
    sum_items(a, sh, smem, slots, walk);
  } else if (warp == kGroups * 4) {
    proxy_fence_global();  // bulk loads see the rows that the kernel ahead stored
    load_rows(a, sh, smem, walk, call);
  } else if (warp == kGroups * 4 + 1) {
    load_slots(a, sh, slots, walk, call);
  } else {
    store_flags(a, sh, walk, call);
  }
  count_end(a, 1);
}
