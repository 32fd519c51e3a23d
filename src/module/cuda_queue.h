// SPDX-License-Identifier: Apache-2.0
//
// cuda_queue.h: DeviceQueue on the CUDA runtime.
#pragma once

#include "cuda/base/memory.h"
#include "device/device_queue.h"

namespace switchyard {

class CudaQueue final : public DeviceQueue {
 public:
  /// Makes GPU (index mod number of GPUs) current for the calling thread. A negative index selects
  /// the GPU that is current. Errors: kNotAvailable.
  explicit CudaQueue(int index);

  Device device() const override { return Device::cuda(device_); }
  Stream stream() override { return Stream::cuda(stream_.get(), device_); }
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

// Entries of the table.
std::unique_ptr<DeviceQueue> make_cuda_queue(int index);
std::shared_ptr<std::byte> allocate_on_gpu(Device device, std::size_t bytes);
std::shared_ptr<std::byte> allocate_zeroed_on_gpu(Device device, std::size_t bytes);
void copy_bytes(void* to, const void* from, std::size_t bytes, Stream stream);
void fill_bytes(void* to, int value, std::size_t bytes, Stream stream);
void synchronize(Stream stream);
Stream own_stream(Device device);

}  // namespace switchyard
