// SPDX-License-Identifier: Apache-2.0

#include "exchange/handle_table.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "core/fail.h"

namespace switchyard {
namespace {

std::atomic<std::uint64_t> num_exchanges = 0;

}  // namespace

HandleTable::HandleTable(std::int32_t max_in_flight)
    : entries_(static_cast<std::size_t>(max_in_flight)), exchange_(++num_exchanges) {}

std::size_t HandleTable::open(const char* operation) {
  for (std::size_t slot = 0; slot < entries_.size(); ++slot) {
    if (entries_[slot].stage != Stage::kFree) continue;
    entries_[slot].id = next_id_++;
    return slot;
  }
  fail(Errc::kInvalidArgument,
       "{}: {} handles are alive, max_in_flight is {}; combine or release one first", operation,
       entries_.size(), entries_.size());
}

std::size_t HandleTable::num_alive() const {
  return static_cast<std::size_t>(std::count_if(
      entries_.begin(), entries_.end(), [](const Entry& e) { return e.stage != Stage::kFree; }));
}

std::size_t HandleTable::index_of(const DispatchHandle& handle, const char* operation) const {
  const auto slot = static_cast<std::size_t>(handle.slot_);
  require(handle.exchange_ == exchange_ && slot < entries_.size() &&
              entries_[slot].id == handle.id_ && entries_[slot].stage != Stage::kFree,
          Errc::kInvalidArgument,
          "{}: the handle is not alive here, it ends with its combine or release; dispatch first",
          operation);
  return slot;
}

std::size_t HandleTable::find(const DispatchHandle& handle, Stage wanted,
                              const char* operation) const {
  static constexpr const char* kDone[] = {"free", "sent by dispatch", "received from dispatch",
                                          "sent by combine"};
  const std::size_t slot = index_of(handle, operation);
  require(entries_[slot].stage == wanted, Errc::kInvalidArgument,
          "{}: the handle was {} last, must have been {}", operation,
          kDone[static_cast<int>(entries_[slot].stage)], kDone[static_cast<int>(wanted)]);
  return slot;
}

DispatchHandle HandleTable::handle_of(std::size_t slot) const {
  DispatchHandle handle;
  handle.slot_ = static_cast<std::int32_t>(slot);
  handle.id_ = entries_[slot].id;
  handle.exchange_ = exchange_;
  return handle;
}

void HandleTable::keep(DispatchHandle& handle, std::shared_ptr<CachedRouting> routing) {
  handle.routing_ = std::move(routing);
}

void HandleTable::keep(DispatchHandle& handle, std::uint64_t routing_id) {
  handle.routing_id_ = routing_id;
}

const std::shared_ptr<CachedRouting>& HandleTable::routing(const DispatchHandle& handle) {
  return handle.routing_;
}

std::uint64_t HandleTable::routing_id(const DispatchHandle& handle) const {
  return handle.exchange_ == exchange_ ? handle.routing_id_ : 0;
}

std::size_t HandleTable::former_slot(const DispatchHandle& handle) const {
  return handle.exchange_ == exchange_ ? static_cast<std::size_t>(handle.slot_) : entries_.size();
}

}  // namespace switchyard
