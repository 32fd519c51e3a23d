// SPDX-License-Identifier: Apache-2.0
//
// variants.cuh: every data path with its launch; a line of the tables DV and CV is a variant.
#pragma once

#include "combine_ring.cuh"
#include "combine_whole.cuh"
#include "dispatch.cuh"
#include "host.cuh"
#include "memory.cuh"

struct Variant {
  const char* name;
  void (*go)(const Args&, int grid, bool pdl, cudaStream_t);
};
static size_t place_bytes(int grid) { return (size_t)((T + grid - 1) / grid + 2) * P * 4; }
template <bool LAST, bool ALL>
static void go_regs(const Args& a, int G, bool pdl, cudaStream_t st) {
  if (T <= 128)
    launch(dispatch_regs<14, LAST, ALL>, G, 1024, place_bytes(G), pdl, st, a);
  else if (T <= 512)
    launch(dispatch_regs<7, LAST, ALL>, G, 1024, place_bytes(G), pdl, st, a);
  else
    launch(dispatch_regs<2, LAST, ALL>, G, 1024, place_bytes(G), pdl, st, a);
}
template <bool LAST>
static void go_bulk(const Args& a, int G, bool pdl, cudaStream_t st) {
  launch(dispatch_bulk<LAST>, G, 512, IS * 6 * STAGE + place_bytes(G), pdl, st, a);
}
static void go_pull(const Args& a, int G, bool pdl, cudaStream_t st) {
  T <= 128 ? launch(combine_pull<1>, G, 1024, 0, pdl, st, a)
           : launch(combine_pull<4 / (P / 2)>, G, 1024, 0, pdl, st, a);
}
static void go_pull_bulk(const Args& a, int G, bool pdl, cudaStream_t st) {
  launch(combine_pull_bulk, G, 480, (size_t)kRing * YB, pdl, st, a);
}
template <int B, int N>
static void go_push(const Args& a, int G, bool pdl, cudaStream_t st) {
  T <= 512 ? launch(combine_push<B, 7, N>, G, (N + 16) * 32, (size_t)N * 3 * YB, pdl, st, a)
           : launch(combine_push<B, 1, N>, G, (N + 16) * 32, (size_t)N * 3 * YB, pdl, st, a);
}
template <bool EARLY, int SW, int SD, int XW, int XD>
static void go_whole(const Args& a, int G, bool pdl, cudaStream_t st) {
  launch(dispatch_whole<EARLY, SW, SD, XW, XD>, G, (SW + XW) * 32,
         (size_t)(SW * SD + XW * XD) * STAGE + (EARLY ? kIdxBytes : 0), pdl, st, a);
}
template <bool PULL>
static void go_sum(const Args& a, int G, bool pdl, cudaStream_t st) {
  G > 32 || T <= 512 ? launch(combine_whole<PULL, 7>, G, 512, 0, pdl, st, a)
                     : launch(combine_whole<PULL, 1>, G, 512, 0, pdl, st, a);
}
static void go_ring(const Args& a, int G, bool pdl, cudaStream_t st) {
  launch(combine_ring, G, kRingThreads, (size_t)15 * YB, pdl, st, a);
}
static const Variant DV[] = {{"D1a.last", go_regs<true, false>},
                             {"D1a.each", go_regs<false, false>},
                             {"D1b.last", go_bulk<true>},
                             {"D1b.each", go_bulk<false>},
                             {"D1a.all", go_regs<false, true>},
                             {"D3", go_whole<false, 8, 2, 4, 3>},
                             {"D3.early", go_whole<true, 8, 2, 4, 3>},
                             {"D3.few", go_whole<true, 4, 3, 4, 4>}};
static const Variant CV[] = {{"C1a", go_pull},          {"C1b", go_pull_bulk},
                             {"C2.1", go_push<1, IS>},  {"C2.4", go_push<4, IS>},
                             {"C2.few", go_push<1, 1>}, {"C3.push", go_sum<false>},
                             {"C3.pull", go_sum<true>}, {"C3.ring", go_ring}};
// The first ND and NC are the same work, the others the whole work.
constexpr int ND = 5, NC = 5, WHOLE = ND, NDW = 3, NCW = 3;

static void prepare(int d, int c, int G) {
  dry = true;
  for (int i = 0; i < P; ++i) {
    CK(cudaSetDevice(i));
    const Args a = args_of(i, 0);
    if (d >= 0) DV[d].go(a, G, false, g[i].st);
    if (c >= 0) CV[c].go(a, G, false, g[i].st);
  }
  dry = false;
}
