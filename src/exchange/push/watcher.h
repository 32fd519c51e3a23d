// SPDX-License-Identifier: Apache-2.0
//
// watcher.h: joins the waits of kernels to the group. The host does not wait for kernels, so a
// thread looks, every few milliseconds: what a kernel found is told to the other ranks, and when
// the group was aborted, or a peer died or left, the kernels of this rank are told to end. The
// thread uses no CUDA, so a lost GPU cannot hold it.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <thread>

#include "exchange/push/wait_failure.h"

namespace switchyard {

class Watcher {
 public:
  /// Both outlive it. Until it ends no peer may leave the group. Errors: kSystem (no thread).
  Watcher(Control& control, WatchWords& words, std::int64_t num_experts);
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;
  /// Ends the thread.
  ~Watcher();

  /// Throws what kernels of this rank found or why the group was aborted; once it did, the same at
  /// every call. `site`: where this rank is, unless a kernel said it. Any thread.
  void check(const WaitSite& site);

  /// What the thread does each time, now. True once kernels are told to end. Any thread.
  bool look() noexcept;

 private:
  void run(const std::stop_token& stop) noexcept;
  bool has_record() const noexcept;
  void notify_peers() noexcept;
  Error cause(const WaitSite& site);

  Control& control_;
  WatchWords& words_;
  std::int64_t num_experts_;
  std::atomic<bool> is_first_cause_ = false;  ///< the group was aborted for this rank's record
  std::mutex mutex_;                          ///< of the two below
  bool has_told_ = false;
  std::optional<Error> cause_;
  std::jthread thread_;  // last: it uses all the rest
};

}  // namespace switchyard
