// SPDX-License-Identifier: Apache-2.0
//
// handle.h: handles are numbers that are never given twice, kept in one table with the object
// behind them. So a handle that was destroyed, or is of another type, is always recognized, and a
// call that is running keeps its object alive.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "capi/call.h"

namespace switchyard::capi {

/// The object and the name of a handle type; specialized in objects.h.
template <typename Handle>
struct Behind;
template <typename Handle>
using ObjectOf = typename Behind<Handle>::Object;

void* add_handle(const char* type, std::shared_ptr<void> object);
/// The object of a handle of `type`, which is removed from the table if `ends` says so.
/// Errors: kInvalidArgument.
std::shared_ptr<void> find_handle(const void* handle, const char* type, bool ends);

template <typename Handle, typename... Args>
Handle* give(Args&&... args) {
  // Aggregates have no constructor for make_shared to call.
  std::shared_ptr<ObjectOf<Handle>> object(new ObjectOf<Handle>{std::forward<Args>(args)...});
  return static_cast<Handle*>(add_handle(Behind<Handle>::kName, std::move(object)));
}

template <typename Handle>
std::shared_ptr<ObjectOf<Handle>> use(const Handle* handle) {
  return std::static_pointer_cast<ObjectOf<Handle>>(
      find_handle(handle, Behind<Handle>::kName, false));
}

/// The object, whose handle ends.
template <typename Handle>
std::shared_ptr<ObjectOf<Handle>> take(const Handle* handle) {
  return std::static_pointer_cast<ObjectOf<Handle>>(
      find_handle(handle, Behind<Handle>::kName, true));
}

template <typename Handle>
sy_status destroy(const char* function, Handle* handle) noexcept {
  return call(function, [&] {
    if (handle != nullptr) take(handle);
  });
}

}  // namespace switchyard::capi
