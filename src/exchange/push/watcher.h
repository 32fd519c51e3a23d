// SPDX-License-Identifier: Apache-2.0
//
// watcher.h: connects the waits of kernels to the group. The host does not wait for kernels, so a
// thread checks every few milliseconds: it aborts the group if a kernel of this rank failed, and it
// stops this rank's kernels if the group was aborted or if a peer died, left or unwound an
// exception. The thread uses no CUDA, so a lost GPU cannot block it.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "exchange/push/wait_failure.h"

namespace switchyard {

/// What else a rank may wait for: messages between hosts. Any thread.
class LinkWatch {
 public:
  virtual ~LinkWatch() = default;
  /// Aborts the group if messages take too long or have failed.
  virtual void look(Control& control) noexcept = 0;
  /// Ends what is under way, because the group was aborted.
  virtual void abort() noexcept = 0;
  /// The other rank of this host that passes on what rank `source` sends to it; -1: there is none.
  virtual int passed_on_by(int source) const noexcept = 0;
};

class Watcher {
 public:
  /// `control`, `words` and `links`, which may be null, must outlive the watcher. No peer may leave
  /// the group before it is destroyed. `abandoned_by` is DeviceWindow's. Errors: kSystem (no
  /// thread).
  Watcher(Control& control, WatchWords& words, std::int64_t num_experts, LinkWatch* links = nullptr,
          std::function<int()> abandoned_by = {});
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;
  /// Stops the thread.
  ~Watcher();

  /// Throws what kernels of this rank found, or why the group was aborted; every later call throws
  /// the same. `site` is where this rank is, unless a kernel recorded it. Callable from any thread.
  void check(const WaitSite& site);

  /// Runs one check of the thread at once. Returns true once kernels have been stopped. Callable
  /// from any thread.
  bool look() noexcept;

 private:
  void run(const std::stop_token& stop) noexcept;
  bool has_record() const noexcept;
  int abandoner() const { return abandoned_by_ ? abandoned_by_() : -1; }
  void notify_peers() noexcept;
  WaitFailureText describe_record() const;
  Error cause(const WaitSite& site);

  Control& control_;
  WatchWords& words_;
  std::int64_t num_experts_;
  LinkWatch* links_;
  std::function<int()> abandoned_by_;
  std::atomic<bool> is_first_cause_ = false;  ///< this rank's record aborted the group
  std::mutex mutex_;                          ///< guards the two below
  bool has_notified_ = false;
  std::optional<Error> cause_;
  std::jthread thread_;  // last, because it uses all the rest
};

}  // namespace switchyard
