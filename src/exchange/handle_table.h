// SPDX-License-Identifier: Apache-2.0
//
// handle_table.h: which in-flight slots of an exchange are in use, and how far their handles are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "switchyard/exchange_types.h"

namespace switchyard {

/// What was done last with a slot's handle.
enum class Stage : std::uint8_t { kFree, kSent, kReceived, kReturned };

class HandleTable {
 public:
  explicit HandleTable(std::int32_t max_in_flight);

  std::size_t size() const { return entries_.size(); }

  /// A new handle's slot, not in use until advance(). The first free one: which one it is follows
  /// from the handles that are alive, so it is the same on every rank. Errors: kInvalidArgument.
  std::size_t open(const char* operation);
  /// The slot of a handle that is alive. Errors: kInvalidArgument.
  std::size_t index_of(const DispatchHandle& handle, const char* operation) const;
  /// The same of a handle in stage `wanted`. Errors: kInvalidArgument.
  std::size_t find(const DispatchHandle& handle, Stage wanted, const char* operation) const;

  Stage stage(std::size_t slot) const { return entries_[slot].stage; }
  std::size_t num_alive() const;
  std::uint64_t id(std::size_t slot) const { return entries_[slot].id; }
  void advance(std::size_t slot, Stage stage) { entries_[slot].stage = stage; }

  DispatchHandle handle_of(std::size_t slot) const;

  // The routing that a handle carries, in the form of its backend.
  static void keep(DispatchHandle& handle, std::shared_ptr<CachedRouting> routing);
  static void keep(DispatchHandle& handle, std::uint64_t routing_id);
  static const std::shared_ptr<CachedRouting>& routing(const DispatchHandle& handle);
  /// Of a handle of this exchange; 0: none.
  std::uint64_t routing_id(const DispatchHandle& handle) const;
  /// The slot that a handle of this exchange had, alive or not; size() for others.
  std::size_t former_slot(const DispatchHandle& handle) const;

 private:
  struct Entry {
    Stage stage = Stage::kFree;
    std::uint64_t id = 0;
  };

  std::vector<Entry> entries_;
  std::uint64_t exchange_;  ///< number of this exchange in the process
  std::uint64_t next_id_ = 1;
};

}  // namespace switchyard
