// SPDX-License-Identifier: Apache-2.0

#include "exchange/pull/pull_exchange.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "cpu/streaming.h"

namespace switchyard {
namespace {

// Bytes of rows between two updates of rows_ready: enough to be worth waking the readers.
constexpr std::size_t kAnnounceBytes = std::size_t{1} << 20;

}  // namespace

PullExchange::PullExchange(const Group& group, const ExchangeConfig& config,
                           const ExchangeOptions& options)
    : CpuExchange(group, config, options), windows_(group.engine().windows("exchange")) {
  allocate_buffers();
  std::vector<int> all(static_cast<std::size_t>(num_ranks_));
  std::iota(all.begin(), all.end(), 0);
  make_window(shape_.window.total_bytes, std::move(all));
}

PullExchange::PullExchange(const Group& group, const ExchangeConfig& config,
                           const ExchangeOptions& options, std::shared_ptr<Engine> host)
    : CpuExchange(group, config, options),
      windows_(host->windows("exchange")),
      host_(std::move(host)) {}

void PullExchange::make_window(std::size_t bytes, std::vector<int> ranks) {
  window_ = windows_.make_window(bytes);
  ranks_ = std::move(ranks);
  bases_.assign(static_cast<std::size_t>(num_ranks_), nullptr);
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    bases_[static_cast<std::size_t>(ranks_[i])] = window_->base(static_cast<int>(i));
  }
}

// A peer may still read this rank's rows of the set, or the rows that lie in a third rank's set:
// so every peer is waited for, not only those that this operation writes to. It is one load each.
void PullExchange::await_room(const Slot& /*slot*/, Phase phase, std::uint64_t call) {
  const std::uint64_t needed = ledger_.needed(call);
  if (needed == 0) return;
  for (const int peer : ranks_) {
    const auto& consumed = in_window<ConsumedLine>(peer, shape_.window.consumed()).call;
    // Pairs with the release in announce_consumed().
    control_.wait({phase, call, peer},
                  [&] { return consumed.load(std::memory_order_acquire) >= needed; });
  }
}

void PullExchange::announce_consumed(std::uint64_t consumed) {
  in_window<ConsumedLine>(rank_, shape_.window.consumed())
      .call.store(consumed, std::memory_order_release);
  windows_.notify_all();
}

// Peers plan while this rank does, and while its rows are still being quantized.
void PullExchange::publish(Slot& slot) {
  publish_routing(slot);
  plan_sends(slot);
  if (!slot.input.options.routing_only) publish_rows(slot);
}

// When the routing of an earlier dispatch holds, only the header and the weights precede the rows.
void PullExchange::publish_routing(const Slot& slot) {
  std::byte* own = base(rank_);
  OperationHeader& header = header_of(slot, rank_);
  const CachedRouting& routing = *slot.routing;
  const bool has_weights = own_routing(slot).topk_weights != nullptr;
  header.rows_ready.store(0, std::memory_order_relaxed);
  header.routing_call = routing.call;
  header.num_tokens = routing.num_tokens;
  header.max_tokens = routing.max_tokens;
  header.tensor_scale = slot.input.tensor_scale;
  header.has_weights = has_weights ? 1 : 0;
  header.routing_only = slot.input.options.routing_only ? 1 : 0;
  // std::copy rather than memcpy: without tokens the source may be null.
  if (slot.is_new_routing()) {
    std::copy(routing.topk_ids.begin(), routing.topk_ids.end(),
              reinterpret_cast<std::uint16_t*>(own + shape_.window.ids(slot.call)));
  }
  if (has_weights) {
    std::copy(slot.topk_weights.begin(), slot.topk_weights.end(),
              reinterpret_cast<float*>(own + shape_.window.weights(slot.call)));
  }
  // Pairs with the acquire in await_routing().
  header.call.store(slot.call, std::memory_order_release);
  windows_.notify_all();
}

SourceRouting PullExchange::await_routing(Slot& slot, int source) {
  const OperationHeader& header = header_of(slot, source);
  // Pairs with the release in publish_routing().
  const auto is_here = [&] { return header.call.load(std::memory_order_acquire) == slot.call; };
  wait_for(slot, source, [&] {
    if (is_here()) return true;
    progress(slot);
    return is_here();
  });
  const std::byte* from = base(source);
  SourceRouting other{{header.num_tokens},
                      header.routing_call,
                      header.max_tokens,
                      header.tensor_scale,
                      header.routing_only != 0};
  if (slot.is_new_routing()) {
    other.routing.topk_ids =
        reinterpret_cast<const std::uint16_t*>(from + shape_.window.ids(slot.call));
  }
  if (header.has_weights != 0) {
    other.routing.topk_weights =
        reinterpret_cast<const float*>(from + shape_.window.weights(slot.call));
  }
  return other;
}

bool PullExchange::is_published(const Slot& slot, std::int64_t token) const {
  const bool goes_to_all = config_.layout == Layout::kAllGather && num_ranks_ > 1;
  const bool is_read_here = !is_in_place(slot);
  if (goes_to_all || (is_read_here && config_.layout == Layout::kAllGather)) return true;
  const auto ranks = slot.routing->send.ranks_of(token);
  if (is_read_here) return !ranks.empty();
  return std::any_of(ranks.begin(), ranks.end(),
                     [&](const TokenRank& r) { return r.rank != rank_ && shares_window(r.rank); });
}

void PullExchange::publish_rows(const Slot& slot) {
  OperationHeader& header = header_of(slot, rank_);
  const std::size_t row_bytes = shape_.window.row_stride;
  const std::int64_t num_tokens = slot.num_tokens();
  const bool streaming =
      wants_streaming(row_bytes * static_cast<std::size_t>(num_tokens), num_ranks_);
  const auto rows_per_announcement =
      static_cast<std::int64_t>(std::max<std::size_t>(1, kAnnounceBytes / row_bytes));
  for (std::int64_t t = 0; t < num_tokens; ++t) {
    std::byte* const row[] = {base(rank_) + shape_.window.row(slot.call, t)};
    if (is_published(slot, t)) write_row(slot, t, row, streaming);
    if ((t + 1) % rows_per_announcement != 0 && t + 1 != num_tokens) continue;
    if (streaming) streaming_store_fence();
    // Pairs with the acquire in await_rows().
    header.rows_ready.store(t + 1, std::memory_order_release);
    windows_.notify_all();
  }
}

SourceRows PullExchange::rows_of(Slot& slot, int source) {
  return {base(source) + shape_.window.row(slot.call, 0), shape_.window.row_stride, true};
}

std::int64_t PullExchange::await_rows(Slot& slot, int source, std::int64_t position) {
  const OperationHeader& header = header_of(slot, source);
  std::int64_t num_ready = 0;
  // Pairs with the release in publish_rows().
  const auto is_here = [&] {
    num_ready = header.rows_ready.load(std::memory_order_acquire);
    return position < num_ready;
  };
  wait_for(slot, source, [&] {
    if (is_here()) return true;
    progress(slot);
    return is_here();
  });
  return num_ready;
}

ReturnedRows PullExchange::returns_in(const Slot& slot, int owner) const {
  std::byte* home = base(owner);
  return {home + shape_.window.partial(slot.call, 0, 0), shape_.window.combine_row_stride,
          shape_.window.num_columns(),
          reinterpret_cast<float*>(home + shape_.window.weights(slot.call))};
}

void PullExchange::send_returns(Slot& slot, int owner) {
  auto& line = in_window<ArrivalLine>(owner, shape_.window.arrived(slot.call, rank_));
  line.has_weights = slot.returns_weights ? 1 : 0;
  // Pairs with the acquire in await_returns().
  line.call.store(slot.call, std::memory_order_release);
  const auto number = std::find(ranks_.begin(), ranks_.end(), owner) - ranks_.begin();
  windows_.notify(static_cast<int>(number));
}

bool PullExchange::await_returns(Slot& slot, int peer) {
  const auto& arrived = in_window<ArrivalLine>(rank_, shape_.window.arrived(slot.call, peer));
  // Pairs with the release in send_returns().
  control_.wait({Phase::kCombineReceive, slot.call, peer},
                [&] { return arrived.call.load(std::memory_order_acquire) == slot.call; });
  return arrived.has_weights != 0;
}

}  // namespace switchyard
