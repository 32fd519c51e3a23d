// SPDX-License-Identifier: Apache-2.0
//
// host.cuh: memory of all GPUs, inputs, references, launches and graphs.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "checks.cuh"

#define CK(x)                                                                    \
  do {                                                                           \
    const cudaError_t e_ = (x);                                                  \
    if (e_ != cudaSuccess) {                                                     \
      printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #x, cudaGetErrorString(e_)); \
      fflush(stdout);                                                            \
      _exit(3);                                                                  \
    }                                                                            \
  } while (0)

static double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
constexpr int TMAX = 8192, OUTS = 4, XCAP = 90000;  // expanded rows that there is room for
struct Gpu {
  char *tokens, *xcodes, *xscales, *y;
  int *idx, *places, *ecnt, *xlist, *xplace, *refecnt;
  float* pw;
  u64* ctaexp;
  cudaStream_t st;
  char *win, *codes, *scales, *out;
  int *ids, *rowof, *cnt, *list, *refcnt;
  float* wts;
  u32 *calls, *done, *err, *gcount;
  u64 *ctacnt, *bad;
  u64* stamp;
  u64* dstamp;
  std::vector<int> n, nx;  // rows received and expanded rows, by routing
};
static Gpu g[P];
static Lay lay;
static int T = 0, nslab = 1, errors = 0;
static u64 total_bad = 0;
static FILE* js = nullptr;
static bool js_first = true;
static double t_begin, t_limit = 175;
static int num_sms = 132;

static Lay layout(int t) {
  Lay l{};
  size_t o = 0;
  auto take = [&](size_t b) {
    const size_t r = o;
    o = (o + b + 255) / 256 * 256;
    return r;
  };
  const size_t cap = (size_t)P * t;
  l.gate = take(P * 128);
  l.cnt = take(P * P * 8);
  l.ctaall = take(P * P * MAXG * 8);
  l.ready = take(P * 128);
  l.flag = take(P * MAXG * 4);
  l.blk = take((size_t)P * t * 4);
  l.expcnt = take(P * EL * 8);
  l.rec = take(cap * 8);
  l.wflag = take(cap * 7 * 4);
  l.ctl_end = o;
  l.meta = take(cap * K * 8);
  l.codes = take(cap * CB);
  l.scales = take(cap * SB);
  l.ids = take(cap * 32);
  l.wts = take(cap * 32);
  l.origin = take(NR * cap * 4);
  l.res = take(cap * YB);
  l.slots = take(cap * YB);
  l.bytes = o;
  return l;
}
template <typename V>
static void alloc(V*& p, size_t bytes) {
  void* q;
  CK(cudaMalloc(&q, bytes));
  CK(cudaMemset(q, 0, bytes));
  p = static_cast<V*>(q);
}
static void sync_all() {
  for (int i = 0; i < P; ++i) {
    CK(cudaSetDevice(i));
    CK(cudaStreamSynchronize(g[i].st));
  }
}
static void setup() {
  int n = 0;
  CK(cudaGetDeviceCount(&n));
  if (n < P) {
    printf("needs %d GPUs, found %d\n", P, n);
    exit(2);
  }
  for (int i = 0; i < P; ++i) {
    CK(cudaSetDevice(i));
    for (int j = 0; j < P; ++j) {
      if (i == j) continue;
      int can = 0;
      CK(cudaDeviceCanAccessPeer(&can, i, j));
      if (!can) {
        printf("GPU %d cannot access GPU %d\n", i, j);
        exit(2);
      }
      CK(cudaDeviceEnablePeerAccess(j, 0));
    }
    CK(cudaStreamCreateWithFlags(&g[i].st, cudaStreamNonBlocking));
  }
  CK(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, 0));
  num_sms = std::min(num_sms, MAXG);
  const size_t win = layout(TMAX).bytes;
  for (int i = 0; i < P; ++i) {
    CK(cudaSetDevice(i));
    Gpu& q = g[i];
    alloc(q.win, win);
    alloc(q.codes, (size_t)OUTS * TMAX * CB);
    alloc(q.scales, (size_t)OUTS * TMAX * SB);
    alloc(q.out, (size_t)OUTS * TMAX * YB);
    alloc(q.ids, (size_t)NR * TMAX * K * 4);
    alloc(q.wts, (size_t)NR * TMAX * K * 4);
    alloc(q.rowof, (size_t)NR * TMAX * P * 4);
    alloc(q.cnt, NR * P * P * 4);
    alloc(q.refcnt, NR * P * P * 4);
    alloc(q.list, (size_t)NR * P * TMAX * 4);
    alloc(q.calls, 256);
    alloc(q.done, 256);
    alloc(q.err, 256);
    alloc(q.gcount, 256);
    alloc(q.ctacnt, MAXG * P * 8);
    alloc(q.bad, 256);
    alloc(q.tokens, (size_t)OUTS * TMAX * YB);
    alloc(q.xcodes, (size_t)XCAP * CB);
    alloc(q.xscales, (size_t)XCAP * SB);
    alloc(q.y, (size_t)XCAP * YB);
    alloc(q.idx, (size_t)TMAX * K * 4);
    alloc(q.places, (size_t)NR * P * TMAX * K * 4);
    alloc(q.pw, (size_t)NR * P * TMAX * K * 4);
    alloc(q.ecnt, EL * 4);
    alloc(q.xlist, (size_t)NR * XCAP * 4);
    alloc(q.xplace, (size_t)NR * P * TMAX * K * 4);
    alloc(q.refecnt, NR * EL * 4);
    alloc(q.ctaexp, (size_t)MAXG * E / 2 * 8);
    CK(cudaHostAlloc(&q.stamp, 64, cudaHostAllocMapped | cudaHostAllocPortable));
    CK(cudaHostGetDevicePointer(&q.dstamp, q.stamp, 0));
    CK(cudaDeviceSynchronize());
  }
}
static size_t slab(int r) { return (size_t)(r % nslab); }
static Args args_of(int i, int r) {
  Args a{};
  Gpu& q = g[i];
  for (int p = 0; p < P; ++p) a.win[p] = g[p].win;
  a.l = lay;
  a.codes = q.codes + slab(r) * T * CB;
  a.scales = q.scales + slab(r) * T * SB;
  a.ids = q.ids + (size_t)r * T * K;
  a.wts = q.wts + (size_t)r * T * K;
  a.out = q.out + (size_t)(r % OUTS) * T * YB;
  a.rowof = q.rowof + (size_t)r * T * P;
  a.cnt = q.cnt + r * P * P;
  a.calls = q.calls;
  a.done = q.done;
  a.err = q.err;
  a.ctacnt = q.ctacnt;
  a.tokens = q.tokens + slab(r) * T * YB;
  a.xcodes = q.xcodes;
  a.xscales = q.xscales;
  a.y = q.y;
  a.idx = q.idx;
  a.ecnt = q.ecnt;
  a.ctaexp = q.ctaexp;
  a.places = q.places + (size_t)r * P * T * K;
  a.pw = q.pw + (size_t)r * P * T * K;
  a.T = T;
  a.cap = P * T;
  a.me = i;
  a.r = r;
  return a;
}
static Ref ref_of(int i, int r) {
  Ref f{};
  for (int p = 0; p < P; ++p) {
    const Args b = args_of(p, r);
    f.codes[p] = b.codes;
    f.scales[p] = b.scales;
    f.ids[p] = b.ids;
    f.wts[p] = b.wts;
  }
  f.list = g[i].list + (size_t)r * P * T;
  f.cnt = g[i].refcnt + r * P * P;
  f.n = g[i].n[r];
  f.bad = g[i].bad;
  return f;
}
static RefX refx_of(int i, int r) {
  RefX f{};
  for (int p = 0; p < P; ++p) {
    const Args b = args_of(p, r);
    f.tokens[p] = b.tokens;
    f.wts[p] = b.wts;
  }
  f.xlist = g[i].xlist + (size_t)r * XCAP;
  f.xplace = g[i].xplace + (size_t)r * P * T * K;
  f.ecnt = g[i].refecnt + r * EL;
  f.n = g[i].nx[r];
  f.xcap = XCAP;
  f.bad = g[i].bad;
  return f;
}
static double wire_rows, arriving_rows, all_rows,
    x_rows;  // means over routings of the busiest rank
// Tokens, routings and the host's reference for T tokens.
static void inputs(int t) {
  T = t;
  lay = layout(T);
  nslab = std::min(NR, OUTS * TMAX / T);
  std::vector<std::vector<int>> ids(P * NR);
  std::mt19937 rng(1234 + T);
  for (int i = 0; i < P; ++i) {
    CK(cudaSetDevice(i));
    Gpu& q = g[i];
    fill_words<<<1024, 512, 0, q.st>>>((u32*)q.codes, (size_t)nslab * T * CB / 4, 7 + i);
    CK(cudaGetLastError());
    fill_scales<<<256, 512, 0, q.st>>>((float*)q.scales, (size_t)nslab * T * SB / 4, 70 + i);
    CK(cudaGetLastError());
    fill_bf16<<<1024, 512, 0, q.st>>>((u32*)q.tokens, (size_t)nslab * T * YB / 4, 700 + i);
    CK(cudaGetLastError());
    std::vector<float> w((size_t)NR * T * K);
    for (auto& x : w) x = (1 + (rng() & 1023)) / 1024.f;
    std::vector<int> flat((size_t)NR * T * K);
    for (int r = 0; r < NR; ++r) {
      auto& v = ids[i * NR + r];
      v.resize((size_t)T * K);
      for (int k = 0; k < T; ++k) {
        for (int j = 0; j < K; ++j) {
        again:
          const int e = rng() % E;
          for (int m = 0; m < j; ++m)
            if (v[k * K + m] == e) goto again;
          v[k * K + j] = e;
        }
        if (k % 97 == 5) v[k * K + k % K] = -1;  // ids that choose nothing
        if (k % 101 == 7)
          for (int j = 0; j < K; ++j) v[k * K + j] = (k + j) % EL;  // tokens of one rank
      }
      std::copy(v.begin(), v.end(), flat.begin() + (size_t)r * T * K);
    }
    CK(cudaMemcpyAsync(q.ids, flat.data(), flat.size() * 4, cudaMemcpyHostToDevice, q.st));
    CK(cudaMemcpyAsync(q.wts, w.data(), w.size() * 4, cudaMemcpyHostToDevice, q.st));
    CK(cudaStreamSynchronize(q.st));
    q.n.assign(NR, 0);
    q.nx.assign(NR, 0);
  }
  wire_rows = arriving_rows = all_rows = x_rows = 0;
  for (int r = 0; r < NR; ++r) {
    std::vector<int> cnt(P * P, 0);
    std::vector<std::vector<int>> list(P);
    for (int s = 0; s < P; ++s)
      for (int k = 0; k < T; ++k) {
        u32 m = 0;
        for (int j = 0; j < K; ++j) {
          const int e = ids[s * NR + r][k * K + j];
          if (e >= 0) m |= 1u << e / EL;
        }
        for (int d = 0; d < P; ++d)
          if (m >> d & 1) {
            ++cnt[s * P + d];
            list[d].push_back(s << 16 | k);
          }
      }
    double out = 0, in = 0, all = 0;
    for (int d = 0; d < P; ++d) {
      Gpu& q = g[d];
      q.n[r] = (int)list[d].size();
      double o = 0, n = 0;
      for (int s = 0; s < P; ++s)
        if (s != d) {
          o += cnt[d * P + s];
          n += cnt[s * P + d];
        }
      out = std::max(out, o);
      in = std::max(in, n);
      all = std::max(all, (double)list[d].size());
      CK(cudaSetDevice(d));
      CK(cudaMemcpyAsync(q.list + (size_t)r * P * T, list[d].data(), list[d].size() * 4,
                         cudaMemcpyHostToDevice, q.st));
      CK(cudaMemcpyAsync(q.refcnt + r * P * P, cnt.data(), P * P * 4, cudaMemcpyHostToDevice,
                         q.st));
      CK(cudaStreamSynchronize(q.st));
    }
    double real = 0;
    for (int d = 0; d < P;
         ++d) {  // expanded rows: experts in order, aligned to 128, then sources, then tokens
      std::vector<std::vector<int>> rows(EL);
      std::vector<int> place((size_t)P * T * K, -1), counts(EL), xl;
      for (int s = 0; s < P; ++s)
        for (int i = 0; i < T * K; ++i) {
          const int e = ids[s * NR + r][i];
          if (e >= 0 && e / EL == d) rows[e % EL].push_back(s * T * K + i);
        }
      for (int e = 0; e < EL; ++e) {
        counts[e] = (int)rows[e].size();
        real += counts[e];
        for (int i : rows[e]) {
          place[i] = (int)xl.size();
          xl.push_back(i / (T * K) << 16 | i % (T * K) / K);
        }
        xl.resize((xl.size() + 127) / 128 * 128, -1);
      }
      if ((int)xl.size() > XCAP) {
        printf("too many expanded rows: %zu\n", xl.size());
        exit(2);
      }
      Gpu& q = g[d];
      q.nx[r] = (int)xl.size();
      CK(cudaSetDevice(d));
      CK(cudaMemcpyAsync(q.xlist + (size_t)r * XCAP, xl.data(), xl.size() * 4,
                         cudaMemcpyHostToDevice, q.st));
      CK(cudaMemcpyAsync(q.xplace + (size_t)r * P * T * K, place.data(), place.size() * 4,
                         cudaMemcpyHostToDevice, q.st));
      CK(cudaMemcpyAsync(q.refecnt + r * EL, counts.data(), EL * 4, cudaMemcpyHostToDevice, q.st));
      CK(cudaStreamSynchronize(q.st));
    }
    x_rows += real / P / NR;
    wire_rows += std::max(out, in) / NR;
    arriving_rows += in / NR;
    all_rows += all / NR;
  }
}
static void reset() {  // call numbers start anew: the grid may change
  sync_all();
  for (int i = 0; i < P; ++i) {
    CK(cudaSetDevice(i));
    Gpu& q = g[i];
    CK(cudaMemsetAsync(q.win, 0, lay.ctl_end, q.st));
    CK(cudaMemsetAsync(q.calls, 0, 256, q.st));
    CK(cudaMemsetAsync(q.done, 0, 256, q.st));
    CK(cudaMemsetAsync(q.err, 0, 256, q.st));
    CK(cudaMemsetAsync(q.gcount, 0, 256, q.st));
    CK(cudaMemsetAsync(q.ctacnt, 0, MAXG * P * 8, q.st));
    CK(cudaMemsetAsync(q.ctaexp, 0, (size_t)MAXG * E / 2 * 8, q.st));
    CK(cudaMemsetAsync(q.bad, 0, 256, q.st));
  }
  sync_all();
}
static bool dry = false;  // launch() only sets attributes, which need not happen during capture
template <typename... A>
static void launch(void (*k)(A...), int grid, int threads, size_t smem, bool pdl, cudaStream_t st,
                   const std::type_identity_t<A>&... a) {
  static std::map<std::pair<void*, int>, size_t> have;
  int dev;
  CK(cudaGetDevice(&dev));
  size_t& h = have[{(void*)k, dev}];
  if (smem > h) {
    CK(cudaFuncSetAttribute((const void*)k, cudaFuncAttributeMaxDynamicSharedMemorySize,
                            (int)smem));
    h = smem;
  }
  if (dry) return;
  cudaLaunchConfig_t c{};
  c.gridDim = grid;
  c.blockDim = threads;
  c.dynamicSmemBytes = smem;
  c.stream = st;
  cudaLaunchAttribute t{};
  t.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  t.val.programmaticStreamSerializationAllowed = 1;
  c.attrs = &t;
  c.numAttrs = pdl;
  CK(cudaLaunchKernelEx(&c, k, a...));
}

// Captures `body` on every GPU between a gate and a stamp.
template <class F>
static void capture(cudaGraphExec_t (&ex)[P], F body) {
  for (int i = 0; i < P; ++i) {
    CK(cudaSetDevice(i));
    Gpu& q = g[i];
    Sync s{};
    for (int p = 0; p < P; ++p) s.peer[p] = (u32*)(g[p].win + lay.gate);
    s.mine = s.peer[i];
    s.count = q.gcount;
    s.stamp = q.dstamp;
    s.err = q.err;
    s.me = i;
    cudaGraph_t gr;
    CK(cudaStreamBeginCapture(q.st, cudaStreamCaptureModeThreadLocal));
    gate_kernel<<<1, 1, 0, q.st>>>(s);
    CK(cudaGetLastError());
    for (int r = 0; r < NR; ++r) body(i, r, q.st);
    end_kernel<<<1, 1, 0, q.st>>>(s);
    CK(cudaGetLastError());
    CK(cudaStreamEndCapture(q.st, &gr));
    CK(cudaGraphInstantiate(&ex[i], gr, 0));
    CK(cudaGraphDestroy(gr));
    CK(cudaGraphUpload(ex[i], q.st));
  }
  sync_all();
}
static void run(cudaGraphExec_t (&ex)[P]) {
  for (int i = 0; i < P; ++i) {
    CK(cudaSetDevice(i));
    CK(cudaGraphLaunch(ex[i], g[i].st));
  }
  sync_all();
}
static void drop(cudaGraphExec_t (&ex)[P]) {
  for (auto e : ex) CK(cudaGraphExecDestroy(e));
}
static bool failed(const char* what) {
  u32 bad = 0;
  for (int i = 0; i < P; ++i) {
    u32 e;
    CK(cudaSetDevice(i));
    CK(cudaMemcpy(&e, g[i].err, 4, cudaMemcpyDeviceToHost));
    if (e) {
      printf("TIME-OUT code %u on GPU %d: %s, T %d\n", e, i, what, T);
      bad = e;
    }
  }
  if (bad) {
    ++errors;
    reset();
  }
  return bad;
}
static u64 bads() {
  u64 s = 0;
  for (int i = 0; i < P; ++i) {
    u64 b;
    CK(cudaSetDevice(i));
    CK(cudaMemcpy(&b, g[i].bad, 8, cudaMemcpyDeviceToHost));
    CK(cudaMemset(g[i].bad, 0, 8));
    s += b;
  }
  return s;
}
static void poison(char* p, size_t bytes, cudaStream_t st) {
  poison_kernel<<<264, 512, 0, st>>>(p, bytes);
  CK(cudaGetLastError());
}
