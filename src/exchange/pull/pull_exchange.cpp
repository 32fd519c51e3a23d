// SPDX-License-Identifier: Apache-2.0

#include "exchange/pull/pull_exchange.h"

#include <algorithm>

#include "core/bytes.h"

namespace switchyard {

PullExchange::PullExchange(const Group& group, const ExchangeConfig& config)
    : group_(group),
      control_(group.control()),
      windows_(group.engine().windows("exchange")),
      config_(config),
      shape_(make_exchange_shape(config, group.size(), group.rank())),
      rank_(group.rank()),
      num_ranks_(group.size()),
      ledger_(shape_.window.shape.num_sets),
      partial_sum_(config.hidden),
      own_sum_(config.hidden) {
  require_agreement(control_, "exchange", agreed_fields(config));
  slots_.resize(static_cast<std::size_t>(config.max_in_flight));
  allocate_buffers();
  window_ = windows_.make_window(shape_.window.total_bytes);
}

// Ranks may need different amounts: that one of them has too little memory must end all of them.
void PullExchange::allocate_buffers() {
  std::string error;
  try {
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

PullExchange::Slot& PullExchange::free_slot(const char* operation) {
  control_.check_alive({Phase::kIdle, ledger_.next(), -1});
  for (Slot& slot : slots_) {
    if (slot.stage == Stage::kFree) return slot;
  }
  fail(Errc::kInvalidArgument,
       "{}: {} handles are alive, max_in_flight is {}; combine or release one first", operation,
       slots_.size(), config_.max_in_flight);
}

DispatchHandle PullExchange::handle_of(const Slot& slot) const {
  DispatchHandle handle;
  handle.slot_ = static_cast<std::int32_t>(&slot - slots_.data());
  handle.id_ = slot.id;
  handle.routing_ = slot.routing;
  return handle;
}

// One that no slot and no handle needs any more, with its memory, or a new one.
std::shared_ptr<CachedRouting> PullExchange::new_routing() {
  for (Slot& slot : slots_) {
    if (slot.stage == Stage::kFree) slot.routing.reset();
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

void PullExchange::require_received(const DispatchHandle& earlier, const char* operation) const {
  const bool is_own =
      std::find(routings_.begin(), routings_.end(), earlier.routing_) != routings_.end();
  require(is_own && earlier.routing_->is_received, Errc::kInvalidArgument,
          "{}: the handle {}; pass one whose dispatch was received", operation,
          earlier.routing_ == nullptr ? "is empty"
          : is_own                    ? "was sent by dispatch and not received"
                                      : "is of another Exchange");
}

DispatchHandle PullExchange::reopen(const DispatchHandle& earlier) {
  require_received(earlier, "reopen");
  Slot& slot = free_slot("reopen");
  slot.routing = earlier.routing_;
  slot.dispatch_call = 0;
  slot.topk_weights.clear();
  slot.placement_weights.clear();
  slot.id = next_id_++;
  slot.stage = Stage::kReceived;
  return handle_of(slot);
}

std::size_t PullExchange::index_of(const DispatchHandle& handle, const char* operation) const {
  const auto index = static_cast<std::size_t>(handle.slot_);
  require(handle.slot_ >= 0 && index < slots_.size() && slots_[index].id == handle.id_ &&
              slots_[index].routing == handle.routing_ && slots_[index].stage != Stage::kFree,
          Errc::kInvalidArgument,
          "{}: the handle is not alive here, it ends with its combine or release; dispatch first",
          operation);
  return index;
}

PullExchange::Slot& PullExchange::find(const DispatchHandle& handle, Stage wanted,
                                       const char* operation) {
  static constexpr const char* kDone[] = {"free", "sent by dispatch", "received from dispatch",
                                          "sent by combine"};
  Slot& slot = slots_[index_of(handle, operation)];
  require(slot.stage == wanted, Errc::kInvalidArgument,
          "{}: the handle was {} last, must have been {}", operation,
          kDone[static_cast<int>(slot.stage)], kDone[static_cast<int>(wanted)]);
  return slot;
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
  Slot& slot = slots_[index_of(handle, "release")];
  const bool is_open = slot.stage != Stage::kReceived;
  slot.stage = Stage::kFree;
  if (is_open) finish(slot.call);
}

std::vector<RowOrigin> PullExchange::row_origins(const DispatchHandle& handle) const {
  const Slot& slot = slots_[index_of(handle, "row_origins")];
  require(slot.stage != Stage::kSent, Errc::kInvalidArgument,
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
  const Slot& slot = slots_[index_of(handle, "wire_bytes")];
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
  if (slot.stage == Stage::kSent) return bytes;
  for (const Arrival& arrival : slot.receive().arrivals) {
    if (arrival.source == rank_ || !returns_row(arrival)) continue;
    const std::int64_t rows = config_.reduce == Reduce::kPerExpert ? arrival.count : 1;
    bytes.combine += rows * static_cast<std::int64_t>(shape_.window.shape.combine_row_bytes);
  }
  return bytes;
}

}  // namespace switchyard
