// SPDX-License-Identifier: Apache-2.0
//
// prefill_lab.cu: a program that compares data paths for many tokens on the GPUs of one host. One
// process drives all GPUs; windows are allocated by cudaMalloc and mapped through peer access.
// NOTES.md beside this file has the designs, the arguments of reuse and progress, and what was
// measured.
//
//   nvcc -arch=sm_90 -O3 -std=c++20 -o prefill_lab bench/lab/prefill/prefill_lab.cu
#include "variants.cuh"

// 20 calls with experts between dispatch and combine; everything compared, then poisoned.
static bool check(int d, int c, int G, bool pdl) {
  cudaGraphExec_t ex[P];
  prepare(d, c, G);
  capture(ex, [&](int i, int r, cudaStream_t st) {
    const Args a = args_of(i, r);
    const Ref f = ref_of(i, r);
    const size_t cap = a.cap;
    if (d >= WHOLE) {
      const RefX x = refx_of(i, r);
      poison(a.win[i] + lay.meta, lay.origin - lay.meta, st);
      poison(a.win[i] + lay.slots, cap * YB, st);
      poison(a.out, (size_t)T * YB, st);
      poison(a.xcodes, std::min<size_t>(XCAP, x.n + 128) * CB, st);
      poison(a.xscales, std::min<size_t>(XCAP, x.n + 128) * SB, st);
      poison((char*)a.places, cap * K * 4, st);
      DV[d].go(a, G, pdl, st);
      check_expanded<<<528, 448, 0, st>>>(a, x);
      CK(cudaGetLastError());
      poison(a.win[i] + lay.res, cap * YB, st);
      poison(a.y, (size_t)x.n * YB, st);
      expert_expanded<<<528, 512, 0, st>>>(a, x);
      CK(cudaGetLastError());
      CV[c].go(a, G, pdl, st);
      check_out_whole<<<264, 448, 0, st>>>(a, x);
      CK(cudaGetLastError());
      return;
    }
    poison(a.win[i] + lay.codes, lay.origin - lay.codes, st);
    poison(a.win[i] + lay.slots, cap * YB, st);
    poison(a.out, (size_t)T * YB, st);
    DV[d].go(a, G, pdl, st);
    check_recv<<<264, 256, 0, st>>>(a, f);
    CK(cudaGetLastError());
    poison(a.win[i] + lay.res, cap * YB, st);
    expert_kernel<<<264, 512, 0, st>>>(a);
    CK(cudaGetLastError());
    CV[c].go(a, G, pdl, st);
    check_out<<<264, 512, 0, st>>>(a, f);
    CK(cudaGetLastError());
  });
  run(ex);
  drop(ex);
  char what[64];
  snprintf(what, sizeof what, "check %s %s, %d SMs", DV[d].name, CV[c].name, G);
  const bool dead = failed(what);
  const u64 b = bads();
  if (b) printf("WRONG: %llu words, %s, T %d\n", b, what, T);
  total_bad += b;
  return !dead && !b;
}
// us per call, slowest rank, median of n replays; 0 when it failed.
static double measure(int d, int c, int G, bool pdl, int n) {
  if (errors >= 4 || now() - t_begin > t_limit) return 0;
  cudaGraphExec_t ex[P];
  prepare(d, c, G);
  capture(ex, [&](int i, int r, cudaStream_t st) {
    const Args a = args_of(i, r);
    if (d >= 0) DV[d].go(a, G, pdl, st);
    if (c >= 0) CV[c].go(a, G, pdl, st);
  });
  std::vector<double> v;
  for (int k = 0; k < n + 2; ++k) {
    run(ex);
    double m = 0;
    for (int i = 0; i < P; ++i) m = std::max(m, (double)(g[i].stamp[1] - g[i].stamp[0]));
    if (k >= 2) v.push_back(m / 1e3 / NR);
  }
  drop(ex);
  char what[64];
  snprintf(what, sizeof what, "%s %s, %d SMs", d >= 0 ? DV[d].name : "-", c >= 0 ? CV[c].name : "-",
           G);
  if (failed(what)) return 0;
  std::sort(v.begin(), v.end());
  if (js) {
    fprintf(js,
            "%s\n "
            "{\"tokens\":%d,\"sms\":%d,\"pdl\":%d,\"dispatch\":\"%s\",\"combine\":\"%s\",\"us\":%."
            "2f,\"us_min\":%.2f,\"us_p80\":%.2f}",
            js_first ? "" : ",", T, G, (int)pdl, d >= 0 ? DV[d].name : "", c >= 0 ? CV[c].name : "",
            v[n / 2], v[0], v[n * 4 / 5]);
    js_first = false;
  }
  return v[n / 2];
}
static void same_work(int t, int G, int n, bool both_pdl) {
  if (errors >= 4 || now() - t_begin > t_limit) {
    printf("T %d, %d SMs: left out (%s)\n", t, G, errors >= 4 ? "errors" : "time");
    return;
  }
  if (T != t) inputs(t);
  reset();
  bool ok = true;
  for (int k = 0; k < ND; ++k) ok &= check(k, k % NC, G, true);
  const double dw = wire_rows * (CB + SB + 68) / 369e3, cw = wire_rows * YB / 369e3;
  const double dm = (T * (CB + SB + 64.) + all_rows * (CB + SB + 68)) / 2815e3,
               cm = (all_rows + T) * YB / 2815e3;
  printf(
      "T %5d  %3d SMs  floors us: dispatch wire %.1f memory %.1f, combine wire %.1f memory %.1f\n",
      T, G, dw, dm, cw, cm);
  for (int pdl = 1; pdl >= (both_pdl ? 0 : 1); --pdl) {
    printf("  %-7s %9s |", pdl ? "PDL" : "no PDL", "us");
    for (int c = 0; c < NC; ++c) printf(" %8s", CV[c].name);
    printf("   alone\n");
    printf("  %-7s %9s |", "", "alone");
    for (int c = 0; c < NC; ++c) printf(" %8.2f", measure(-1, c, G, pdl, n));
    printf("\n");
    for (int d = 0; d < ND; ++d) {
      double p[NC];
      for (int c = 0; c < NC; ++c) p[c] = measure(d, c, G, pdl, n);
      printf("  %-7s %9s |", "", DV[d].name);
      for (double x : p) printf(" %8.2f", x);
      printf(" %8.2f\n", measure(d, -1, G, pdl, n));
    }
    fflush(stdout);
  }
  for (int k = 0; k < ND; ++k) ok &= check(k, (k + 1) % NC, G, false);
  printf("  checks before and after: %s (%.0f s)\n", ok ? "right" : "WRONG", now() - t_begin);
  fflush(stdout);
}
static void whole_work(int t, int G, int n, bool both_pdl) {
  if (errors >= 4 || now() - t_begin > t_limit) {
    printf("T %d, %d SMs, whole work: left out (%s)\n", t, G, errors >= 4 ? "errors" : "time");
    return;
  }
  if (T != t) inputs(t);
  reset();
  bool ok = true;
  for (int k = 0; k < NCW; ++k) ok &= check(WHOLE + k % NDW, NC + k, G, true);
  const double dw = wire_rows * (CB + SB + K * 8) / 369e3, cw = wire_rows * YB / 369e3;
  const double dm = (T * (double)YB + (2 * arriving_rows + x_rows) * (CB + SB)) / 2815e3,
               cm = (x_rows + 2 * arriving_rows + T) * YB / 2815e3;
  printf(
      "T %5d  %3d SMs  WHOLE WORK  floors us: dispatch wire %.1f memory %.1f, combine wire %.1f "
      "memory %.1f\n",
      T, G, dw, dm, cw, cm);
  for (int pdl = 1; pdl >= (both_pdl ? 0 : 1); --pdl) {
    printf("  %-7s %9s |", pdl ? "PDL" : "no PDL", "us");
    for (int c = NC; c < NC + NCW; ++c) printf(" %8s", CV[c].name);
    printf("   alone\n  %-7s %9s |", "", "alone");
    for (int c = NC; c < NC + NCW; ++c) printf(" %8.2f", measure(-1, c, G, pdl, n));
    printf("\n");
    for (int d = WHOLE; d < WHOLE + NDW; ++d) {
      printf("  %-7s %9s |", "", DV[d].name);
      for (int c = NC; c < NC + NCW; ++c) printf(" %8.2f", measure(d, c, G, pdl, n));
      printf(" %8.2f\n", measure(d, -1, G, pdl, n));
    }
    fflush(stdout);
  }
  for (int k = 0; k < NCW; ++k) ok &= check(WHOLE + (k + 1) % NDW, NC + k, G, false);
  printf("  checks before and after: %s (%.0f s)\n", ok ? "right" : "WRONG", now() - t_begin);
  fflush(stdout);
}
// GB/s that a number of SMs move, in the own memory and to or from the next GPU, all GPUs at once:
// what no path on so many SMs can exceed. Copies count bytes read plus bytes written.
struct Mover {
  const char *name, *key;
  void (*kernel)(const char*, char*, int, u32*, u32*);
  bool remote;
  int factor;
};
static const Mover MV[] = {{"bulk load", "bulk_load", memory_kernel<0>, false, 1},
                           {"bulk copy", "bulk_copy", memory_kernel<1>, false, 2},
                           {"16 B load", "load16", memory_kernel<2>, false, 1},
                           {"bulk store", "bulk_store", memory_kernel<3>, false, 1},
                           {"16 B store", "store16", memory_kernel<4>, false, 1},
                           {"peer load", "peer_bulk_load", memory_kernel<0>, true, 1},
                           {"peer ld16", "peer_load16", memory_kernel<2>, true, 1},
                           {"peer store", "peer_bulk_store", memory_kernel<3>, true, 1},
                           {"peer st16", "peer_store16", memory_kernel<4>, true, 1}};
static void memory_table(int n) {
  reset();
  printf("GB/s\n  %5s", "SMs");
  for (const Mover& m : MV) printf(" %10s", m.name);
  printf("\n");
  for (int G : {8, 16, 24, num_sms}) {
    printf("  %5d", G);
    if (js) fprintf(js, "%s\n {\"memory_sms\":%d", js_first ? "" : ",", G);
    js_first = false;
    for (const Mover& m : MV) {
      const int rows = OUTS * TMAX / (m.remote ? 4 : m.factor);
      auto go = [&](int i, cudaStream_t st) {
        const Gpu& other = g[m.remote ? (i + 1) % P : i];
        launch(m.kernel, G, 512, (size_t)IS * 3 * YB, false, st, other.y, other.out, rows, g[i].err,
               g[i].done);
      };
      dry = true;
      for (int i = 0; i < P; ++i) {
        CK(cudaSetDevice(i));
        go(i, g[i].st);
      }
      dry = false;
      cudaGraphExec_t ex[P];
      capture(ex, [&](int i, int r, cudaStream_t st) {
        if (r < 4) go(i, st);
      });
      std::vector<double> v;
      for (int k = 0; k < n; ++k) {
        run(ex);
        double x = 0;
        for (int i = 0; i < P; ++i) x = std::max(x, (double)(g[i].stamp[1] - g[i].stamp[0]));
        v.push_back(x / 4);
      }
      drop(ex);
      failed("memory");
      std::sort(v.begin(), v.end());
      const double gbps = (double)m.factor * rows * YB / v[n / 2];
      printf(" %10.0f", gbps);
      if (js) fprintf(js, ",\"%s_gbps\":%.0f", m.key, gbps);
    }
    printf("\n");
    if (js) fprintf(js, "}");
  }
  fflush(stdout);
}
int main(int argc, char** argv) {
  bool quick = false, same_only = false, whole_only = false;
  std::string json, commit = "unknown", command = "prefill_lab";
  for (int i = 1; i < argc; ++i) command += std::string(" ") + argv[i];
  for (int i = 1; i < argc; ++i) {
    const std::string s = argv[i];
    if (s == "--quick")
      quick = true;
    else if (s == "--same")
      same_only = true;
    else if (s == "--whole")
      whole_only = true;
    else if (s == "--json" && i + 1 < argc)
      json = argv[++i];
    else if (s == "--commit" && i + 1 < argc)
      commit = argv[++i];
    else if (s == "--limit" && i + 1 < argc)
      t_limit = atof(argv[++i]);
    else {
      printf(
          "prefill_lab [--quick] [--same | --whole] [--json FILE] [--commit ID] "
          "[--limit SECONDS]\n");
      return s == "--help" ? 0 : 2;
    }
  }
  t_begin = now();
  alarm((unsigned)t_limit + 60);
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);  // never while another kernel waits on the device
  setup();
  cudaDeviceProp pr;
  CK(cudaGetDeviceProperties(&pr, 0));
  printf(
      "prefill_lab: %d x %s, %d SMs; H %d, K %d, E %d; graph of %d calls, slowest rank, median; "
      "set-up %.1f s\n",
      P, pr.name, num_sms, H, K, E, NR, now() - t_begin);
  fflush(stdout);
  if (!json.empty()) {
    js = fopen(json.c_str(), "w");
    if (!js) {
      perror(json.c_str());
      return 2;
    }
    fprintf(js,
            "{\"machine\":\"%d x %s\",\"program\":\"bench/lab/prefill/prefill_lab.cu\","
            "\"command\":\"%s\",\"commit\":\"%s\",\"rows\":[",
            P, pr.name, command.c_str(), commit.c_str());
  }
  const int n = quick ? 5 : 51;
  T = TMAX;
  lay = layout(TMAX);
  memory_table(5);
  T = 0;
  for (int t : quick ? std::vector<int>{128, 4096} : std::vector<int>{4096, 128, 512, 8192, 32}) {
    if (!whole_only) same_work(t, num_sms, n, t <= 512);
    if (!same_only && t >= 128) whole_work(t, num_sms, n, t <= 512);
  }
  for (int s : quick ? std::vector<int>{16} : std::vector<int>{8, 16, 24}) {
    if (!same_only) whole_work(4096, s, quick ? 5 : 21, false);
    if (!whole_only) same_work(4096, s, quick ? 5 : 11, false);
  }
  if (js) {
    fprintf(js, "\n],\"wrong_words\":%llu,\"time_outs\":%d}\n", total_bad, errors);
    fclose(js);
  }
  printf("%llu wrong words, %d time-outs, %.0f s\n", total_bad, errors, now() - t_begin);
  return total_bad || errors ? 1 : 0;
}
