// SPDX-License-Identifier: Apache-2.0
//
// handle.h: handles are numbers that are never given twice, kept in one table with the object
// behind them. So a handle that was destroyed, or is of another type, is always recognized, and a
// call that is running keeps its object alive.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include "capi/call.h"

namespace switchyard::capi {

/// The object and the name of a handle type; specialized in objects.h.
template <typename Handle>
struct Behind;
template <typename Handle>
using ObjectOf = typename Behind<Handle>::Object;

enum class Finding {
  kUse,
  kEnd,      ///< the handle is removed from the table
  kEndIdle,  ///< the same, where no call is using the object: refused otherwise
};

void* add_handle(const char* type, std::shared_ptr<void> object);
/// The object of a handle of `type`. Errors: kInvalidArgument.
std::shared_ptr<void> find_handle(const void* handle, const char* type, Finding finding);

template <typename Handle, typename... Args>
Handle* give(Args&&... args) {
  // Aggregates have no constructor for make_shared to call.
  std::shared_ptr<ObjectOf<Handle>> object(new ObjectOf<Handle>{std::forward<Args>(args)...});
  return static_cast<Handle*>(add_handle(Behind<Handle>::kName, std::move(object)));
}

template <typename Handle>
std::shared_ptr<ObjectOf<Handle>> use(const Handle* handle) {
  return std::static_pointer_cast<ObjectOf<Handle>>(
      find_handle(handle, Behind<Handle>::kName, Finding::kUse));
}

/// The object, whose handle ends.
template <typename Handle>
std::shared_ptr<ObjectOf<Handle>> take(const Handle* handle, Finding finding = Finding::kEnd) {
  return std::static_pointer_cast<ObjectOf<Handle>>(
      find_handle(handle, Behind<Handle>::kName, finding));
}

/// What one thread may close during a call of another: it ends with that call then.
template <typename T>
class Closable {
 public:
  template <typename... Args>
  explicit Closable(Args&&... args) : object_{std::forward<Args>(args)...} {}

  void close(bool waits_for_peers) {
    const std::lock_guard lock(mutex_);
    waits_for_peers_ = waits_for_peers;
    if (num_calls_ == 0) end();
  }

  T& begin() {
    const std::lock_guard lock(mutex_);
    check(!waits_for_peers_, "it was closed, must be open");
    ++num_calls_;
    return object_;
  }
  void finish() noexcept {
    const std::lock_guard lock(mutex_);
    if (--num_calls_ > 0) return;
    try {
      end();
    } catch (...) {  // whoever closed it is gone; the group knows what failed
    }
  }
  /// For a caller that has the object to itself.
  T& object() { return object_; }

 private:
  void end() {
    if (waits_for_peers_) object_.close(*std::exchange(waits_for_peers_, std::nullopt));
  }

  T object_;
  std::mutex mutex_;
  int num_calls_ = 0;
  std::optional<bool> waits_for_peers_;  ///< set by a close that is still to come
};

/// One call that uses it.
template <typename T>
class Running {
 public:
  explicit Running(std::shared_ptr<Closable<T>> owner)
      : owner_(std::move(owner)), object_(&owner_->begin()) {}
  Running(Running&&) noexcept = default;
  Running& operator=(Running&&) = delete;
  ~Running() {
    if (owner_ != nullptr) owner_->finish();
  }

  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  const std::shared_ptr<Closable<T>>& owner() const { return owner_; }

 private:
  std::shared_ptr<Closable<T>> owner_;
  T* object_;
};

template <typename Handle>
auto run(const Handle* handle) {
  return Running(use(handle));
}

template <typename Handle>
sy_status destroy(const char* function, Handle* handle) noexcept {
  return call(function, [&] {
    if (handle != nullptr) take(handle);
  });
}

}  // namespace switchyard::capi
