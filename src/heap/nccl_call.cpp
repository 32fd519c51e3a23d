// SPDX-License-Identifier: Apache-2.0

#include "heap/nccl_call.h"

#include <atomic>
#include <cstdlib>
#include <optional>
#include <system_error>
#include <utility>

#include "core/fail.h"
#include "cuda/base/beside_capture.h"
#include "cuda/base/check.h"

namespace switchyard {

struct NcclThread::Job {
  std::atomic<bool> is_done = false;
  std::optional<Error> error;
};

NcclThread::NcclThread(std::function<void()> work) : job_(std::make_shared<Job>()) {
  auto run = [job = job_, work = std::move(work)]() mutable {
    try {
      work();
    } catch (const Error& error) {
      job->error = error;
    } catch (const std::exception& error) {
      job->error = Error(Errc::kInternal, error.what());
    }
    work = nullptr;  // before is_done: after it, only the heap owns what `work` held
    job->is_done.store(true, std::memory_order_release);  // pairs with the acquire below
  };
  try {
    thread_ = std::thread(std::move(run));
  } catch (const std::system_error& error) {
    fail(Errc::kSystem, "nccl: no thread to call it: {}", error.what());
  }
}

NcclThread::~NcclThread() {
  if (is_done()) {
    thread_.join();
  } else {
    thread_.detach();
  }
}

bool NcclThread::is_done() const noexcept { return job_->is_done.load(std::memory_order_acquire); }

void NcclThread::check() const {
  if (job_->error) throw Error(*job_->error);
}

void run_within_deadline(Control& control, int device, std::function<void()> work) {
  const NcclThread helper([device, work = std::move(work)] {
    const cuda::BesideCapture beside;  // the caller may capture a stream
    cuda::check_cuda(cudaSetDevice(device), "cudaSetDevice");
    work();
  });
  const int next = (control.rank() + 1) % control.size();
  control.wait({Phase::kSetup, 0, next}, [&] { return helper.is_done(); });
  helper.check();
}

// NCCL reads the variable once per process.
void turn_nvls_off() {
  static const int result = setenv("NCCL_NVLS_ENABLE", "0", 1);
  (void)result;
}

}  // namespace switchyard
