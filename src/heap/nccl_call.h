// SPDX-License-Identifier: Apache-2.0
//
// nccl_call.h: how NCCL is called here. Its calls wait for all ranks and have no deadline, so they
// run on a helper thread, and this rank waits for that thread as it waits for a peer. If that wait
// fails, the thread keeps what it works on and releases it whenever NCCL returns.
#pragma once

#include <functional>
#include <memory>
#include <thread>

#include "engine/control.h"

namespace switchyard {

/// A thread for calls that may never return.
class NcclThread {
 public:
  /// Errors: kSystem (no thread).
  explicit NcclThread(std::function<void()> work);
  NcclThread(const NcclThread&) = delete;
  NcclThread& operator=(const NcclThread&) = delete;
  /// Does not wait: a thread that still works keeps what it works on.
  ~NcclThread();

  bool is_done() const noexcept;
  /// Once it is done: throws what the work threw.
  void check() const;

 private:
  struct Job;
  std::shared_ptr<Job> job_;
  std::thread thread_;
};

/// Runs `work` on a thread with `device` current. Errors: those of `work` and those of a wait for
/// peers.
void run_within_deadline(Control& control, int device, std::function<void()> work);

/// Call before the first communicator is made. NVLS would allocate multicast objects that nothing
/// here uses.
void turn_nvls_off();

}  // namespace switchyard
