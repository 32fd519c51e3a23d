// SPDX-License-Identifier: Apache-2.0

#include "cuda/base/launch.h"
#include "cuda/exchange/call.cuh"
#include "cuda/exchange/host_counts.h"
#include "cuda/exchange/wire.cuh"

namespace switchyard::cuda {
namespace {

constexpr int kThreads = 256;

// Rows from each rank, then rows of each local expert. False: gave up.
__device__ bool count_rows(const HostCountsArgs& a, std::uint64_t call, int entry) {
  const int num_ranks = a.ownership.num_ranks;
  const auto wait = [&](int source, int record, std::int32_t& count) {
    std::uint32_t value = 0;
    const std::byte* from = a.window + a.layout.announcement(call, source) +
                            static_cast<std::size_t>(record) * kRecordBytes;
    const WaitFor what{WaitPlace::kAnnouncement, source, -1, call};
    if (!wait_record(from, a.watch, what, value)) return false;
    count += static_cast<std::int32_t>(value);
    return true;
  };
  std::int32_t count = 0;
  if (entry < num_ranks) {
    if (!wait(entry, 0, count)) return false;
    a.to.rows_per_rank[entry] = count;
    return true;
  }
  const int expert = entry - num_ranks;
  for (int source = 0; source < num_ranks; ++source) {
    if (!wait(source, 1 + expert, count)) return false;
  }
  a.to.rows_per_expert[expert] = count;
  return true;
}

// A send part does not count its call, and lets this kernel start once all its CTAs have waited for
// what is ahead of them: the call number is the right one, however early it is read.
__global__ void __launch_bounds__(kThreads)
    host_counts_kernel(const __grid_constant__ HostCountsArgs a) {
  const std::uint64_t call = next_call(a.state);
  const int num_entries = a.ownership.num_ranks + a.ownership.count(a.rank);
  bool is_good = *const_cast<const volatile std::uint32_t*>(a.watch.failed) == 0;
  for (int i = static_cast<int>(threadIdx.x); is_good && i < num_entries; i += kThreads) {
    is_good = count_rows(a, call, i);
  }
  if (threadIdx.x == 0) *a.to.num_dropped = *a.num_dropped;
  __threadfence_system();
  if (__syncthreads_and(is_good) != 0 && threadIdx.x == 0) {
    __threadfence_system();  // behind the counts of the other threads
    *const_cast<volatile std::uint64_t*>(a.to.call) = call;
  }
  wait_for_prerequisites();  // the end of this kernel implies the end of the one ahead
}

}  // namespace

void launch_host_counts(const HostCountsArgs& args, bool behind_send, cudaStream_t stream) {
  launch_kernel(host_counts_kernel, {1, kThreads, 0, behind_send, stream}, "dispatch", args);
}

}  // namespace switchyard::cuda
