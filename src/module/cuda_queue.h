// SPDX-License-Identifier: Apache-2.0
//
// cuda_queue.h: DeviceQueue on the CUDA runtime.
#pragma once

#include "cuda/base/memory.h"
#include "device/device_queue.h"

namespace switchyard {

class CudaQueue final : public DeviceQueue {
 public:
  /// Makes GPU (index mod number of GPUs) current for the calling thread; below 0: takes the one
  /// that is. Errors: kNotAvailable.
  explicit CudaQueue(int index);

  int device() const { return device_; }
  Stream stream() override { return stream_.get(); }
  std::size_t free_bytes() override;
  DeviceMemory allocate(std::size_t bytes) override;
  void copy(void* to, const void* from, std::size_t bytes) override;
  void copy_async(void* to, const void* from, std::size_t bytes, Stream stream) override;
  void fill(void* to, int value, std::size_t bytes) override;
  void wait() override;

 private:
  int device_;
  cuda::OwnedStream stream_;
};

/// Entry of the table.
std::unique_ptr<DeviceQueue> make_cuda_queue(int index);

}  // namespace switchyard
