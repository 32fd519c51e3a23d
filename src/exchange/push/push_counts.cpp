// SPDX-License-Identifier: Apache-2.0
//
// Receive buffers of the true size: the host waits until all ranks have announced their rows, then
// sizes what the receive part fills. The rows travel meanwhile.

#include <sched.h>

#include <algorithm>
#include <atomic>

#include "core/clock.h"
#include "core/fail.h"
#include "core/round_up.h"
#include "cuda/base/check.h"
#include "exchange/push/push_exchange.h"

namespace switchyard {
namespace {

// The stream may have other work ahead of the kernel that counts, whose own wait has the timeout.
constexpr int kTimeoutsOfHost = 2;
constexpr int kSpinsPerLook = 1024;
// Asking the driver takes a lock that threads of other ranks need for their launches.
constexpr std::int64_t kNsPerQuery = 5 * kNsPerMs;
// Memory is taken for an eighth more rows than came, so that it rarely grows.
constexpr std::int64_t kPartToSpare = 8;

// Rows of a rank or of an expert lie at places that the counts do not move.
bool has_fixed_rows(Layout layout) {
  return layout == Layout::kBatched || layout == Layout::kByRank;
}

}  // namespace

// The rows of an earlier dispatch that were counted need not be counted again.
Sizing PushExchange::sizing_of(const DispatchCall& call, const Slot* earlier) const {
  const bool is_known = earlier != nullptr && earlier->dispatch.sizing == Sizing::kCounted;
  if (!is_known && !options_.exact_memory && !call.options.host_counts) return Sizing::kWorstCase;
  require(
      (is_known && !takes_memory_to_size()) || !cuda::is_capturing(call.stream.get(), "dispatch"),
      Errc::kInvalidArgument,
      "{}: {}, but the stream is captured into a graph; dispatch without it", call.name(),
      options_.exact_memory ? "ExchangeOptions::exact_memory takes memory in each dispatch"
                            : "DispatchOptions::host_counts waits for counts on the host");
  return is_known ? Sizing::kCounted : Sizing::kToBeCounted;
}

void PushExchange::count_rows(Slot& slot, bool behind_send, Stream stream) {
  require(!cuda::is_capturing(stream.get(), "dispatch"), Errc::kInvalidArgument,
          "dispatch_receive: host counts were asked for, but the stream is captured into a graph; "
          "receive outside of it");
  std::uint64_t& arrived = *slot.kernels.counts.call;
  std::atomic_ref(arrived).store(0, std::memory_order_relaxed);
  cuda::HostCountsArgs args = host_counts_args(slot.kernels);
  if (hosts_ != nullptr) args.watch.timeout_ns = hosts_->dispatch_timeout_ns();
  cuda::launch_host_counts(args, behind_send, stream.get());
  await_word(arrived, stream);

  const cuda::HostCountWords& counts = slot.kernels.counts;
  slot.rows_per_rank.assign(counts.rows_per_rank, counts.rows_per_rank + group_.size());
  slot.dispatch.num_rows = exact_rows(slot);
  slot.dispatch.sizing = Sizing::kCounted;
  fit_received(slot, stream);
}

// With fixed places, a rank that breaks its word on max_tokens must not write beyond the buffer.
void PushExchange::fit_received(Slot& slot, Stream stream) {
  if (!takes_memory_to_size()) return;
  const std::int64_t max_rows = max_buffer_rows();
  const std::int64_t rows = has_fixed_rows(shape_.config.layout)
                                ? max_rows
                                : std::max<std::int64_t>(1, slot.dispatch.num_rows);
  if (rows <= slot.num_received_rows) return;
  take_received(slot, std::min(rows + rows / kPartToSpare, max_rows), stream.get());
}

// The kernel has the deadline. The host's is for what the caller has queued ahead of it.
void PushExchange::await_word(std::uint64_t& word, Stream stream) {
  const std::atomic_ref arrived(word);
  const std::int64_t timeout_ms =
      kTimeoutsOfHost * static_cast<std::int64_t>(watch_.timeout_ns) / kNsPerMs;
  const Deadline deadline = Deadline::after_ms(timeout_ms);
  std::int64_t next_query_ns = now_ns() + kNsPerQuery;
  for (int spins = 1; arrived.load(std::memory_order_acquire) == 0; ++spins) {
    if (spins % kSpinsPerLook != 0) continue;
    check();
    sched_yield();
    if (now_ns() < next_query_ns) continue;
    next_query_ns = now_ns() + kNsPerQuery;
    const cudaError_t state = cudaStreamQuery(stream.get());
    if (state != cudaErrorNotReady) cuda::check_cuda(state, "dispatch");
    if (deadline.expired()) {
      group_.control().abort(
          Errc::kTimeout, hosts_ == nullptr ? group_.rank() : -1,
          fmt::format("the counts of a dispatch of rank {} did not come within {:.1f} s: what its "
                      "stream has ahead of it takes longer{}",
                      group_.rank(), static_cast<double>(timeout_ms) * 1e-3,
                      hosts_ == nullptr ? "" : ", or a rank of another host did not call"));
    }
  }
}

std::int64_t PushExchange::exact_rows(const Slot& slot) const {
  const Layout layout = shape_.config.layout;
  if (has_fixed_rows(layout) || config_.worst_case_rows) return slot.dispatch.num_rows;
  const cuda::HostCountWords& counts = slot.kernels.counts;
  std::int64_t rows = 0;
  if (layout == Layout::kExpanded) {
    for (int e = 0; e < shape_.exchange.ownership.count(group_.rank()); ++e) {
      rows += align_up<std::int64_t>(counts.rows_per_expert[e], shape_.config.expert_alignment);
    }
  } else {
    for (const std::int64_t from : slot.rows_per_rank) rows += from;
  }
  // More than a capacity allows is an error, which the receive part finds.
  return std::min(rows, max_buffer_rows());
}

HostCounts PushExchange::host_counts(const Slot& slot) const {
  const cuda::HostCountWords& words = slot.kernels.counts;
  HostCounts counts;
  counts.num_dropped = shape_.drops ? *words.num_dropped : 0;
  counts.rows_per_rank = slot.rows_per_rank;
  if (!shape_.gathers) {
    const int num_local = shape_.exchange.ownership.count(group_.rank());
    counts.rows_per_expert = {words.rows_per_expert, static_cast<std::size_t>(num_local)};
  }
  if (is_expert_major(shape_.config.layout)) {
    for (const std::int32_t rows : counts.rows_per_expert) counts.num_rows += rows;
  } else {
    for (const std::int64_t rows : counts.rows_per_rank) counts.num_rows += rows;
  }
  return counts;
}

}  // namespace switchyard
