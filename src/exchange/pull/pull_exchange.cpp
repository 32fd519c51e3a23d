// SPDX-License-Identifier: Apache-2.0

#include "exchange/pull/pull_exchange.h"

#include <algorithm>

#include "core/bytes.h"
#include "core/memory.h"
#include "exchange/check_returns.h"

namespace switchyard {

PullExchange::PullExchange(const Group& group, const ExchangeConfig& config,
                           const ExchangeOptions& options)
    : group_(group),
      control_(group.control()),
      windows_(group.engine().windows("exchange")),
      config_(config),
      shape_(make_exchange_shape(config, group.size(), group.rank())),
      rank_(group.rank()),
      num_ranks_(group.size()),
      ledger_(shape_.window.shape.num_sets),
      handles_(config.max_in_flight),
      partial_sum_(config.hidden),
      own_sum_(config.hidden) {
  require(options.timeout_ms == 0, Errc::kNotSupported,
          "exchange: timeout_ms is {}, must be 0 on CPUs, where waits have the group's deadline",
          options.timeout_ms);
  require_agreement(control_, "exchange", agreed_fields(config));
  slots_.resize(handles_.size());
  allocate_buffers();
  window_ = windows_.make_window(shape_.window.total_bytes);
}

// Linux would grant each rank its part alone, so the ranks of this host are counted together. Rows
// that never come touch no memory of a receive buffer, so those need not be available.
void PullExchange::require_host_memory() const {
  std::size_t windows = 0;
  std::size_t bytes = 0;
  for (int peer = 0; peer < num_ranks_; ++peer) {
    if (control_.host_of(peer) != control_.host_of(rank_)) continue;
    const ExchangeMemory part = exchange_memory(config_, num_ranks_, peer);
    windows = checked_add(windows, part.window_bytes);
    bytes = checked_add(bytes, checked_add(part.window_bytes, part.receive_bytes));
  }
  const ExchangeMemory own = memory();
  const std::string what =
      fmt::format("memory of {} ranks (this one {} bytes of window and {} of buffers)",
                  control_.host_size(), own.window_bytes, own.receive_bytes);
  require_reservation(what, bytes);
  require_memory(what, windows);
}

// Ranks may need different amounts: that one of them has too little memory must end all of them.
void PullExchange::allocate_buffers() {
  std::string error;
  try {
    require_host_memory();
    share_ = AlignedBuffer(shape_.window.combine_row_stride);
    sum_ = AlignedBuffer(static_cast<std::size_t>(config_.hidden) * sizeof(float));
    for (Slot& slot : slots_) allocate(slot);
  } catch (const Error& cause) {
    error = cause.what();
  }
  const std::vector<std::string> errors = control_.all_gather_text(error);
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    require(errors[rank].empty(), Errc::kOutOfMemory, "exchange: rank {} of {}: {}", rank,
            errors.size(), errors[rank]);
  }
}

void PullExchange::allocate(Slot& slot) const {
  const auto num_rows = static_cast<std::size_t>(shape_.max_buffer_rows);
  const auto num_topk = static_cast<std::size_t>(config_.num_topk);
  const bool is_major = is_expert_major(config_.layout);
  slot.rows = AlignedBuffer(checked_mul(num_rows, shape_.payload_bytes));
  slot.scales =
      AlignedBuffer(scale_blocks(config_, shape_, rank_, shape_.max_buffer_rows).num_bytes());
  if (!is_major) slot.topk_ids = AlignedBuffer(num_rows * num_topk * sizeof(std::int32_t));
  if (config_.sends_weights) {
    slot.weights = AlignedBuffer(num_rows * (is_major ? 1 : num_topk) * sizeof(float));
  }
  for (const std::int64_t bytes : config_.payload_bytes) {
    slot.payloads.emplace_back(checked_mul(num_rows, static_cast<std::size_t>(bytes)));
  }
}

ExchangeMemory PullExchange::memory() const { return exchange_memory(config_, num_ranks_, rank_); }

void PullExchange::check() const { control_.check_alive({Phase::kIdle, ledger_.next(), -1}); }

PullExchange::Slot& PullExchange::open_slot(const char* operation, std::int32_t wanted) {
  check();
  return slots_[handles_.open(operation, wanted)];
}

DispatchHandle PullExchange::handle_of(const Slot& slot) const {
  DispatchHandle handle = handles_.handle_of(index_of(slot));
  HandleTable::keep(handle, slot.routing);
  return handle;
}

// One that no slot and no handle needs any more, with its memory, or a new one.
std::shared_ptr<CachedRouting> PullExchange::new_routing() {
  for (Slot& slot : slots_) {
    if (handles_.stage(index_of(slot)) == Stage::kFree) slot.routing.reset();
  }
  for (const auto& routing : routings_) {
    if (routing.use_count() > 1) continue;
    routing->num_dropped = 0;
    routing->is_received = false;
    routing->topk_ids.clear();
    return routing;
  }
  return routings_.emplace_back(std::make_shared<CachedRouting>());
}

const std::shared_ptr<CachedRouting>& PullExchange::received_routing(const DispatchHandle& earlier,
                                                                     const char* operation) const {
  const std::shared_ptr<CachedRouting>& routing = HandleTable::routing(earlier);
  const bool is_own = std::find(routings_.begin(), routings_.end(), routing) != routings_.end();
  require(is_own && routing->is_received, Errc::kInvalidArgument,
          "{}: the handle {}; pass one whose dispatch was received", operation,
          routing == nullptr ? "is empty"
          : is_own           ? "was sent by dispatch and not received"
                             : "is of another Exchange");
  return routing;
}

DispatchHandle PullExchange::reopen(const DispatchHandle& earlier, Stream) {
  const std::shared_ptr<CachedRouting> routing = received_routing(earlier, "reopen");
  Slot& slot = open_slot("reopen");
  slot.routing = routing;
  slot.dispatch_call = 0;
  slot.topk_weights.clear();
  slot.placement_weights.clear();
  handles_.advance(index_of(slot), Stage::kReceived);
  return handle_of(slot);
}

const PullExchange::Slot& PullExchange::slot_of(const DispatchHandle& handle,
                                                const char* operation) const {
  return slots_[handles_.index_of(handle, operation)];
}

PullExchange::Slot& PullExchange::find(const DispatchHandle& handle, Stage wanted,
                                       const char* operation) {
  return slots_[handles_.find(handle, wanted, operation)];
}

std::uint64_t PullExchange::begin(const char* operation, Phase phase) {
  control_.check_alive({phase, ledger_.next(), -1});
  const std::uint64_t call = ledger_.begin(operation);
  control_.enter(phase, call);
  // A peer may still read this rank's rows of the set, or the rows that lie in a third rank's set:
  // so every peer is waited for, not only those that this operation writes to. It is one load each.
  const std::uint64_t needed = ledger_.needed(call);
  for (int peer = 0; needed > 0 && peer < num_ranks_; ++peer) {
    const auto& consumed = in_window<ConsumedLine>(peer, shape_.window.consumed()).call;
    // Pairs with the release in finish().
    control_.wait({phase, call, peer},
                  [&] { return consumed.load(std::memory_order_acquire) >= needed; });
  }
  return call;
}

void PullExchange::finish(std::uint64_t call) {
  ledger_.finish(call);
  in_window<ConsumedLine>(rank_, shape_.window.consumed())
      .call.store(ledger_.consumed(), std::memory_order_release);
  windows_.notify_all();
  control_.enter(Phase::kIdle, call);
}

void PullExchange::release(const DispatchHandle& handle) {
  const std::size_t index = handles_.index_of(handle, "release");
  const bool is_open = handles_.stage(index) != Stage::kReceived;
  handles_.advance(index, Stage::kFree);
  if (is_open) finish(slots_[index].call);
}

void PullExchange::write_row_sources(const DispatchHandle& handle, const RowSources& sources,
                                     Stream) const {
  const Slot& slot = slot_of(handle, "write_row_sources");
  const std::vector<RowOrigin> origins = row_origins(handle);
  check_row_sources(sources, slot.receive().num_buffer_rows, num_ranks_);
  const auto write = [&](const TensorView& list, std::int32_t RowOrigin::*value) {
    if (!list.has_value()) return;
    std::fill_n(list.as<std::int32_t>(), list.num_elements(), -1);
    for (const RowOrigin& origin : origins) list.as<std::int32_t>()[origin.row] = origin.*value;
  };
  write(sources.rank, &RowOrigin::rank);
  write(sources.token, &RowOrigin::token);
  if (!sources.rows_per_rank.has_value()) return;
  auto* count = sources.rows_per_rank.as<std::int32_t>();
  for (const std::int64_t rows : slot.routing->rows_per_rank) {
    *count++ = static_cast<std::int32_t>(rows);
  }
}

std::vector<RowOrigin> PullExchange::row_origins(const DispatchHandle& handle) const {
  const Slot& slot = slot_of(handle, "row_origins");
  require(handles_.stage(index_of(slot)) != Stage::kSent, Errc::kInvalidArgument,
          "row_origins: the handle was sent by dispatch, must have been received");
  const ReceivePlan& receive = slot.receive();
  std::vector<RowOrigin> origins;
  if (!is_expert_major(config_.layout)) {
    for (const Arrival& a : receive.arrivals) {
      const std::int32_t k = a.count == 0 ? -1 : placements_of(slot, a).back().k;
      origins.push_back({a.row, -1, a.source, a.token, k, 1.0f});
    }
    return origins;
  }
  origins.resize(receive.placements.size());
  // Rows of an expert are consecutive, so a row's place in the list follows from its number.
  std::vector<std::int64_t> first(receive.num_rows.size(), 0);
  for (std::size_t e = 1; e < first.size(); ++e) first[e] = first[e - 1] + receive.num_rows[e - 1];
  for (const Arrival& arrival : receive.arrivals) {
    for (std::int32_t i = arrival.first; i < arrival.first + arrival.count; ++i) {
      const Placement& p = receive.placements[static_cast<std::size_t>(i)];
      const auto e = static_cast<std::size_t>(p.expert);
      const std::int64_t place = first[e] + p.row - receive.first_row[e];
      origins[static_cast<std::size_t>(place)] = {p.row,         p.expert, arrival.source,
                                                  arrival.token, p.k,      slot.weight(i)};
    }
  }
  return origins;
}

WireBytes PullExchange::wire_bytes(const DispatchHandle& handle) const {
  const Slot& slot = slot_of(handle, "wire_bytes");
  std::int64_t row_bytes =
      static_cast<std::int64_t>(shape_.payload_bytes + shape_.window.shape.scale_bytes);
  for (const std::int64_t bytes : config_.payload_bytes) row_bytes += bytes;
  const bool sends_ids = slot.routing->call == slot.dispatch_call;
  const bool sends_weights = own_routing(slot).topk_weights != nullptr;
  if (slot.input.options.routing_only) row_bytes = 0;
  const std::int64_t routing_bytes =
      slot.num_tokens() * config_.num_topk * ((sends_ids ? 2 : 0) + (sends_weights ? 4 : 0));
  WireBytes bytes;
  for (int peer = 0; peer < num_ranks_; ++peer) {
    if (peer == rank_ || slot.dispatch_call == 0) continue;
    const std::int64_t sent =
        config_.layout == Layout::kAllGather
            ? slot.num_tokens()
            : slot.routing->send.num_tokens_to[static_cast<std::size_t>(peer)];
    bytes.dispatch += sent * row_bytes + routing_bytes;
  }
  if (handles_.stage(index_of(slot)) == Stage::kSent) return bytes;
  for (const Arrival& arrival : slot.receive().arrivals) {
    if (arrival.source == rank_ || !returns_row(arrival)) continue;
    const std::int64_t rows = config_.reduce == Reduce::kPerExpert ? arrival.count : 1;
    bytes.combine += rows * static_cast<std::int64_t>(shape_.window.shape.combine_row_bytes);
  }
  return bytes;
}

}  // namespace switchyard
