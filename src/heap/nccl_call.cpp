// SPDX-License-Identifier: Apache-2.0

#include "heap/nccl_call.h"

#include <atomic>
#include <cstdlib>
#include <optional>
#include <thread>

#include "cuda/base/beside_capture.h"
#include "cuda/base/check.h"

namespace switchyard {
namespace {

struct Job {
  std::atomic<bool> is_done = false;
  std::optional<Error> error;
};

}  // namespace

void run_within_deadline(Control& control, int device, std::function<void()> work) {
  const auto job = std::make_shared<Job>();
  std::thread helper([job, device, work = std::move(work)]() mutable {
    const cuda::BesideCapture beside;  // the caller may capture a stream
    try {
      cuda::check_cuda(cudaSetDevice(device), "cudaSetDevice");
      work();
    } catch (const Error& error) {
      job->error = error;
    } catch (const std::exception& error) {
      job->error = Error(Errc::kInternal, error.what());
    }
    work = nullptr;  // before is_done: after it, only the heap owns what `work` held
    job->is_done.store(true, std::memory_order_release);  // pairs with the acquire below
  });
  try {
    const int next = (control.rank() + 1) % control.size();
    control.wait({Phase::kSetup, 0, next},
                 [&] { return job->is_done.load(std::memory_order_acquire); });
  } catch (...) {
    helper.detach();
    throw;
  }
  helper.join();
  if (job->error) throw *job->error;
}

// NCCL reads the variable once per process.
void turn_nvls_off() {
  static const int result = setenv("NCCL_NVLS_ENABLE", "0", 1);
  (void)result;
}

}  // namespace switchyard
