// SPDX-License-Identifier: Apache-2.0

#include "exchange/one_sided.h"

#include "core/bytes.h"

namespace switchyard {

OneSidedExchange::OneSidedExchange(const Group& group, const ExchangeConfig& config)
    : group_(group),
      engine_(group.engine()),
      config_(config),
      shape_(make_exchange_shape(config, group.size(), group.rank())),
      rank_(group.rank()),
      num_ranks_(group.size()),
      ledger_(shape_.window.shape.num_sets) {
  require_agreement(engine_, "exchange", agreed_fields(config));
  window_ = engine_.make_window(shape_.window.total_bytes);
  slots_.resize(static_cast<std::size_t>(config.max_in_flight));
  share_ = AlignedBuffer(shape_.window.shape.combine_row_bytes);
  sum_ = AlignedBuffer(static_cast<std::size_t>(config.hidden) * sizeof(float));
  const auto num_rows = static_cast<std::size_t>(shape_.max_buffer_rows);
  for (Slot& slot : slots_) {
    slot.rows = AlignedBuffer(checked_mul(num_rows, shape_.payload_bytes));
    slot.scales = AlignedBuffer(checked_mul(num_rows, shape_.window.shape.scale_bytes));
  }
}

OneSidedExchange::Slot& OneSidedExchange::free_slot() {
  for (Slot& slot : slots_) {
    if (slot.stage == Stage::kFree) return slot;
  }
  fail(Errc::kInvalidArgument,
       "dispatch: {} handles are alive, max_in_flight is {}; combine or release one first",
       slots_.size(), config_.max_in_flight);
}

std::size_t OneSidedExchange::index_of(const DispatchHandle& handle, const char* operation) const {
  const auto index = static_cast<std::size_t>(handle.slot_);
  require(handle.slot_ >= 0 && index < slots_.size() && slots_[index].id == handle.id_ &&
              slots_[index].stage != Stage::kFree,
          Errc::kInvalidArgument,
          "{}: the handle is not alive, it ends with its combine or release; dispatch first",
          operation);
  return index;
}

OneSidedExchange::Slot& OneSidedExchange::find(const DispatchHandle& handle, Stage wanted,
                                               const char* operation) {
  static constexpr const char* kDone[] = {"free", "sent by dispatch", "received from dispatch",
                                          "sent by combine"};
  Slot& slot = slots_[index_of(handle, operation)];
  require(slot.stage == wanted, Errc::kInvalidArgument,
          "{}: the handle was {} last, must have been {}", operation,
          kDone[static_cast<int>(slot.stage)], kDone[static_cast<int>(wanted)]);
  return slot;
}

std::uint64_t OneSidedExchange::begin(const char* operation, Phase phase) {
  engine_.check_alive({phase, ledger_.next(), -1});
  const std::uint64_t epoch = ledger_.begin(operation);
  engine_.enter(phase, epoch);
  // A peer may still read this rank's rows of the set, or the rows that lie in a third rank's set:
  // so every peer is waited for, not only those that this operation writes to. It is one load each.
  const std::uint64_t needed = ledger_.needed(epoch);
  for (int peer = 0; needed > 0 && peer < num_ranks_; ++peer) {
    const auto& consumed = in_window<ConsumedLine>(peer, shape_.window.consumed()).epoch;
    // Pairs with the release in finish().
    engine_.wait({phase, epoch, peer},
                 [&] { return consumed.load(std::memory_order_acquire) >= needed; });
  }
  return epoch;
}

void OneSidedExchange::finish(std::uint64_t epoch) {
  ledger_.finish(epoch);
  in_window<ConsumedLine>(rank_, shape_.window.consumed())
      .epoch.store(ledger_.consumed(), std::memory_order_release);
  engine_.notify_all();
  engine_.enter(Phase::kIdle, epoch);
}

void OneSidedExchange::release(const DispatchHandle& handle) {
  find(handle, Stage::kReceived, "release").stage = Stage::kFree;
}

std::vector<RowOrigin> OneSidedExchange::row_origins(const DispatchHandle& handle) const {
  const Slot& slot = slots_[index_of(handle, "row_origins")];
  require(slot.stage != Stage::kSent, Errc::kInvalidArgument,
          "row_origins: the handle was sent by dispatch, must have been received");
  std::vector<RowOrigin> origins(slot.receive.placements.size());
  // Rows of an expert are consecutive, so a row's place in the list follows from its number.
  std::vector<std::int64_t> first(slot.receive.num_rows.size(), 0);
  for (std::size_t e = 1; e < first.size(); ++e) {
    first[e] = first[e - 1] + slot.receive.num_rows[e - 1];
  }
  for (const Arrival& arrival : slot.receive.arrivals) {
    for (std::int32_t i = 0; i < arrival.count; ++i) {
      const Placement& p = slot.receive.placements[static_cast<std::size_t>(arrival.first + i)];
      const auto e = static_cast<std::size_t>(p.expert);
      const std::int64_t place = first[e] + p.row - slot.receive.first_row[e];
      origins[static_cast<std::size_t>(place)] = {p.row,         p.expert, arrival.source,
                                                  arrival.token, p.k,      p.weight};
    }
  }
  return origins;
}

WireBytes OneSidedExchange::wire_bytes(const DispatchHandle& handle) const {
  const Slot& slot = slots_[index_of(handle, "wire_bytes")];
  const std::int64_t row_bytes =
      static_cast<std::int64_t>(shape_.payload_bytes + shape_.window.shape.scale_bytes);
  const std::int64_t routing_bytes =
      slot.num_tokens * config_.num_topk *
      (own_routing(slot).topk_weights == nullptr ? 2 : 6);  // u16 id, f32 weight
  WireBytes bytes;
  for (int peer = 0; peer < num_ranks_; ++peer) {
    if (peer == rank_) continue;
    const auto sent = slot.send.tokens_to[static_cast<std::size_t>(peer)].size();
    bytes.dispatch += static_cast<std::int64_t>(sent) * row_bytes + routing_bytes;
  }
  if (slot.stage == Stage::kSent) return bytes;
  for (const Arrival& arrival : slot.receive.arrivals) {
    if (arrival.source == rank_) continue;
    const std::int64_t rows = config_.reduce == Reduce::kPerExpert ? arrival.count : 1;
    bytes.combine += rows * config_.hidden * 2;
  }
  return bytes;
}

}  // namespace switchyard
