// SPDX-License-Identifier: Apache-2.0

#include "measure/stages.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "measure/statistics.h"

namespace switchyard::measure {
namespace {

using cuda::CtaStages;
using cuda::KernelStages;

constexpr std::array kRoles{"notify", "send", "receive", "all work"};
constexpr std::array<const char*, cuda::kNumStages> kStages{
    "start", "call known", "first store", "announcements seen", "route seen", "chunk seen", "end"};

// Kernel, role (-1: none) and stage (-1: the gap), in the order of the table.
using Key = std::tuple<bool, int, int>;

std::uint64_t first_start(const KernelStages& kernel) {
  std::uint64_t first = kernel.ctas.at(0).ns[0];
  for (const CtaStages& cta : kernel.ctas) {
    if (cta.ns[0] != 0) first = std::min(first, cta.ns[0]);
  }
  return first;
}

std::uint64_t last_end(const KernelStages& kernel) {
  std::uint64_t last = 0;
  for (const CtaStages& cta : kernel.ctas) last = std::max(last, cta.ns.back());
  return last;
}

double us_between(std::uint64_t from, std::uint64_t to) {
  return 1e-3 * (static_cast<double>(to) - static_cast<double>(from));
}

void add_kernel(std::map<Key, std::vector<double>>& times, const KernelStages& kernel) {
  const std::uint64_t start = first_start(kernel);
  for (const CtaStages& cta : kernel.ctas) {
    for (int stage = 0; stage < cuda::kNumStages; ++stage) {
      const std::uint64_t ns = cta.ns[static_cast<std::size_t>(stage)];
      if (ns == 0) continue;
      times[{kernel.is_combine, static_cast<int>(cta.role), stage}].push_back(
          us_between(start, ns));
    }
  }
}

}  // namespace

std::vector<StageTimes> stage_times(const std::vector<std::vector<KernelStages>>& runs) {
  std::map<Key, std::vector<double>> times;
  for (const std::vector<KernelStages>& run : runs) {
    for (std::size_t i = 0; i < run.size(); ++i) {
      if (i > 0 && last_end(run[i - 1]) != 0) {
        times[{run[i].is_combine, -1, -1}].push_back(
            us_between(last_end(run[i - 1]), first_start(run[i])));
      }
      add_kernel(times, run[i]);
    }
  }
  std::vector<StageTimes> rows;
  for (const auto& [key, us] : times) {
    const auto [is_combine, role, stage] = key;
    rows.push_back({is_combine ? "combine" : "dispatch",
                    role < 0 ? "-" : kRoles[static_cast<std::size_t>(role)],
                    stage < 0 ? "gap" : kStages[static_cast<std::size_t>(stage)], percentile(us, 0),
                    median(us), percentile(us, 1), static_cast<std::int64_t>(us.size())});
  }
  return rows;
}

}  // namespace switchyard::measure
