// SPDX-License-Identifier: Apache-2.0

#include "fma_peak.h"

#include <algorithm>
#include <chrono>
#include <cstddef>

// Arrays of vectors need vectors of known size.
#define HWY_DISABLED_TARGETS (HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "../bench/fma_peak.cpp"  // relative to include/
#include <hwy/foreach_target.h>                     // IWYU pragma: keep
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Twelve chains hide a latency of 5 cycles on two units. Returns the number of operations.
HWY_ATTR double run_chains(std::size_t steps, float* sink) {
  const hn::ScalableTag<float> d;
  const auto x = hn::Set(d, 0.5f);
  // Chains start apart, so that no compiler merges them.
  const auto start = [=](int chain)
                         HWY_ATTR { return hn::Set(d, *sink + static_cast<float>(chain)); };
  auto a = start(0), b = start(1), c = start(2), e = start(3), f = start(4), g = start(5);
  auto h = start(6), i = start(7), j = start(8), k = start(9), l = start(10), m = start(11);
  for (std::size_t step = 0; step < steps; ++step) {
    a = hn::MulAdd(a, x, x);
    b = hn::MulAdd(b, x, x);
    c = hn::MulAdd(c, x, x);
    e = hn::MulAdd(e, x, x);
    f = hn::MulAdd(f, x, x);
    g = hn::MulAdd(g, x, x);
    h = hn::MulAdd(h, x, x);
    i = hn::MulAdd(i, x, x);
    j = hn::MulAdd(j, x, x);
    k = hn::MulAdd(k, x, x);
    l = hn::MulAdd(l, x, x);
    m = hn::MulAdd(m, x, x);
  }
  const auto sum =
      hn::Add(hn::Add(hn::Add(a, b), hn::Add(c, e)), hn::Add(hn::Add(f, g), hn::Add(h, i)));
  *sink = hn::GetLane(hn::Add(sum, hn::Add(hn::Add(j, k), hn::Add(l, m))));
  return 2.0 * 12.0 * static_cast<double>(steps * hn::Lanes(d));
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace switchyard {

HWY_EXPORT(run_chains);

double peak_fma_rate() {
  static const double peak = [] {
    using Clock = std::chrono::steady_clock;
    double best = 0;
    float sink = 0;
    for (int i = 0; i < 100; ++i) {
      const auto start = Clock::now();
      const double done = HWY_DYNAMIC_DISPATCH(run_chains)(50000, &sink);
      best = std::max(best, done / std::chrono::duration<double>(Clock::now() - start).count());
    }
    return best;
  }();
  return peak;
}

}  // namespace switchyard
#endif  // HWY_ONCE
