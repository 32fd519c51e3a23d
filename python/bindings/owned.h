// SPDX-License-Identifier: Apache-2.0
//
// owned.h: objects of the library behind Python objects: closed by close(), useless and never
// destroyed in a forked child, whose parent goes on using the memory that both share.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "switchyard/error.h"

#include "core/fail.h"
#include "gil.h"

namespace switchyard::python {

/// Number of forks between the process that loaded the module and this one.
int fork_generation() noexcept;
void count_forks();

/// Set while a call runs; shared by an object and its calls.
using Busy = std::shared_ptr<std::atomic<bool>>;

/// One call of an object that serves one thread at a time: a second thread is refused.
class Exclusive {
 public:
  Exclusive(Busy busy, const char* type) : busy_(std::move(busy)) {
    require(!busy_->exchange(true), Errc::kInvalidArgument,
            "{}: another thread is in a call, must be one thread at a time", type);
  }
  ~Exclusive() { busy_->store(false); }
  Exclusive(const Exclusive&) = delete;
  Exclusive& operator=(const Exclusive&) = delete;

 private:
  Busy busy_;
};

/// Whether __exit__ got no exception. A rank that leaves a `with` block with one does not wait for
/// its peers, which may be waiting for it.
inline bool ends_well(const nb::args& exception) {
  return exception.size() == 0 || exception[0].is_none();
}

/// A shared T. Tensors that point into it, and calls that run, hold a share each: memory outlives
/// close(), whose collective part is over when it returns. A T that was not closed ends with its
/// last share, without the GIL, because on GPUs it waits for its kernels and its peers then.
template <typename T>
class Owned {
 public:
  Owned() = default;
  explicit Owned(std::unique_ptr<T> object)
      : generation_(fork_generation()),
        object_(object.release(), [generation = generation_](T* made) {
          if (generation == fork_generation()) with_gil_released([&] { delete made; });
        }) {}

  Owned(Owned&&) noexcept = default;
  Owned& operator=(Owned&&) noexcept = default;
  ~Owned() { drop(); }

  /// A share of it. Errors: kInvalidArgument when it was closed or belongs to the parent of a fork.
  std::shared_ptr<T> live(const char* type) const {
    require(object_ != nullptr, Errc::kInvalidArgument, "{}: it was closed, must be open", type);
    require(generation_ == fork_generation(), Errc::kInvalidArgument,
            "{}: it belongs to the process that this one was forked from; make one here", type);
    return object_;
  }

  const Busy& busy() const { return busy_; }
  bool is_closed() const { return object_ == nullptr; }
  /// Ends the object, whoever holds shares, and drops this one; a second time does nothing. Errors:
  /// kInvalidArgument while another thread is in a call, unless this rank leaves with an error of
  /// its own, which must not be hidden: then the call's share is the last.
  void close(const char* type, bool waits_for_peers = true) {
    if (object_ == nullptr) return;
    if (!waits_for_peers && busy_->load()) return drop();
    const Exclusive call(busy_, type);
    const std::shared_ptr<T> object = std::move(object_);  // another thread may look meanwhile
    if (generation_ == fork_generation()) {
      with_gil_released([&] { object->close(waits_for_peers); });
    }
  }
  /// Drops this share, as the end of this object does.
  void drop() { const std::shared_ptr<T> object = std::move(object_); }

 private:
  int generation_ = 0;
  std::shared_ptr<T> object_;
  Busy busy_ = std::make_shared<std::atomic<bool>>(false);
};

}  // namespace switchyard::python
