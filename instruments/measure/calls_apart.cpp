// SPDX-License-Identifier: Apache-2.0

#include "measure/calls_apart.h"

#include "measure/gather.h"

namespace switchyard::measure {

// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
std::int64_t late_ns(std::uint64_t seed, int rank, int call) {
  std::uint64_t x = seed * 0x9E3779B97F4A7C15u + (static_cast<std::uint64_t>(rank) << 32) +
                    static_cast<std::uint64_t>(call) + 1;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return static_cast<std::int64_t>((x ^ (x >> 31)) % (kMaxLateNs + 1));
}

void CallsApart::enqueue(Stream stream, const std::function<void()>& call) {
  const int number = num_calls_++;
  if (before_ == Before::kOtherCode) meter_.run_other_code(stream);
  const bool is_late = before_ == Before::kBeLate;
  meter_.begin_call(number, is_late ? late_ns(seed_, group_.rank(), number) : 0, stream);
  call();
  meter_.end_call(number, stream);
}

std::vector<double> CallsApart::times() const {
  std::vector<double> begins;
  std::vector<double> ends;
  for (const DeviceMeter::CallTime& call : meter_.call_times(num_calls_)) {
    begins.push_back(call.late_us);
    ends.push_back(call.late_us + call.us);
  }
  begins = max_over_ranks(group_, begins);
  ends = max_over_ranks(group_, ends);
  for (std::size_t i = 0; i < ends.size(); ++i) ends[i] -= begins[i];
  return ends;
}

}  // namespace switchyard::measure
