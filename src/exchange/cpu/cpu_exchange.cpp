// SPDX-License-Identifier: Apache-2.0

#include "exchange/cpu/cpu_exchange.h"

#include <algorithm>

#include "core/bytes.h"
#include "core/memory.h"

namespace switchyard {

CpuExchange::CpuExchange(const Group& group, const ExchangeConfig& config,
                         const ExchangeOptions& options)
    : group_(group),
      control_(group.control()),
      config_(config),
      shape_(make_exchange_shape(config, group.size(), group.rank())),
      rank_(group.rank()),
      num_ranks_(group.size()),
      ledger_(shape_.window.shape.num_sets),
      handles_(config.max_in_flight),
      host_sum_(config.hidden),
      partial_sum_(config.hidden),
      own_sum_(config.hidden) {
  require(options.timeout_ms == 0, Errc::kNotSupported,
          "exchange: timeout_ms is {}, must be 0 on CPUs, where waits have the group's deadline",
          options.timeout_ms);
  require_agreement(control_, {Phase::kExchange, "configuration"}, "exchange",
                    agreed_fields(config));
  slots_.resize(handles_.size());
}

// Linux would grant each rank its part alone, so the ranks of this host are counted together. Rows
// that never come touch no memory of a receive buffer, so those need not be available.
void CpuExchange::require_host_memory() const {
  std::size_t windows = 0;
  std::size_t bytes = 0;
  for (int peer = 0; peer < num_ranks_; ++peer) {
    if (control_.host_of(peer) != control_.host_of(rank_)) continue;
    const ExchangeMemory part = memory_of(peer);
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
void CpuExchange::allocate_buffers() {
  std::string error;
  try {
    require_host_memory();
    share_ = AlignedBuffer(shape_.window.combine_row_stride);
    host_row_ = AlignedBuffer(shape_.window.combine_row_stride);
    sum_ = AlignedBuffer(static_cast<std::size_t>(config_.hidden) * sizeof(float));
    for (Slot& slot : slots_) {
      allocate(slot);
      allocate_slot(index_of(slot));
    }
  } catch (const Error& cause) {
    error = cause.what();
  }
  const std::vector<std::string> errors =
      control_.all_gather_text({Phase::kExchange, "buffers"}, error);
  for (std::size_t rank = 0; rank < errors.size(); ++rank) {
    require(errors[rank].empty(), Errc::kOutOfMemory, "exchange: rank {} of {}: {}", rank,
            errors.size(), errors[rank]);
  }
}

void CpuExchange::allocate(Slot& slot) const {
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

void CpuExchange::check() const { control_.check_alive({Phase::kIdle, ledger_.next(), -1}); }

CpuSlot& CpuExchange::open_slot(const char* operation, std::int32_t wanted) {
  check();
  return slots_[handles_.open(operation, wanted)];
}

DispatchHandle CpuExchange::handle_of(const Slot& slot) const {
  DispatchHandle handle = handles_.handle_of(index_of(slot));
  HandleTable::keep(handle, slot.routing);
  return handle;
}

// One that no slot and no handle needs any more, with its memory, or a new one.
std::shared_ptr<CachedRouting> CpuExchange::new_routing() {
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

const std::shared_ptr<CachedRouting>& CpuExchange::received_routing(const DispatchHandle& earlier,
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

DispatchHandle CpuExchange::reopen(const DispatchHandle& earlier, Stream) {
  const std::shared_ptr<CachedRouting> routing = received_routing(earlier, "reopen");
  Slot& slot = open_slot("reopen");
  slot.routing = routing;
  slot.dispatch_call = 0;
  slot.topk_weights.clear();
  slot.placement_weights.clear();
  handles_.advance(index_of(slot), Stage::kReceived);
  return handle_of(slot);
}

const CpuSlot& CpuExchange::slot_of(const DispatchHandle& handle, const char* operation) const {
  return slots_[handles_.index_of(handle, operation)];
}

CpuSlot& CpuExchange::find(const DispatchHandle& handle, Stage wanted, const char* operation) {
  return slots_[handles_.find(handle, wanted, operation)];
}

std::uint64_t CpuExchange::begin(const Slot& slot, const char* operation, Phase phase) {
  control_.check_alive({phase, ledger_.next(), -1});
  const std::uint64_t call = ledger_.begin(operation);
  control_.enter(phase, call);
  await_room(slot, phase, call);
  return call;
}

void CpuExchange::finish(std::uint64_t call) {
  ledger_.finish(call);
  announce_consumed(ledger_.consumed());
  control_.enter(Phase::kIdle, call);
}

void CpuExchange::release(const DispatchHandle& handle) {
  const std::size_t index = handles_.index_of(handle, "release");
  const Stage stage = handles_.stage(index);
  handles_.advance(index, Stage::kFree);
  if (stage == Stage::kReceived) return;
  drain(slots_[index], stage);
  finish(slots_[index].call);
}

}  // namespace switchyard
