// SPDX-License-Identifier: Apache-2.0

#include "module/cuda_queue.h"

#include <algorithm>

#include "core/fail.h"
#include "cuda/base/beside_capture.h"
#include "cuda/base/check.h"

namespace switchyard {
namespace {

int choose_device(int index) {
  int num_devices = 0;
  cuda::check_cuda(cudaGetDeviceCount(&num_devices), "cudaGetDeviceCount");
  require(num_devices > 0, Errc::kNotAvailable, "make_queue: CUDA shows no GPU");
  if (index < 0) {
    cuda::check_cuda(cudaGetDevice(&index), "cudaGetDevice");
    return index;
  }
  const int device = index % num_devices;
  cuda::check_cuda(cudaSetDevice(device), "cudaSetDevice");
  return device;
}

}  // namespace

CudaQueue::CudaQueue(int index) : device_(choose_device(index)) {}

std::size_t CudaQueue::free_bytes() {
  std::size_t free = 0;
  std::size_t total = 0;
  cuda::check_cuda(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

DeviceMemory CudaQueue::allocate(std::size_t bytes) {
  return allocate_on_gpu(Device::cuda(device_), bytes);
}

void CudaQueue::copy(void* to, const void* from, std::size_t bytes) {
  wait();  // see copy_to
  copy_async(to, from, bytes, stream());
  wait();
}

void CudaQueue::copy_async(void* to, const void* from, std::size_t bytes, Stream stream) {
  copy_bytes(to, from, bytes, stream);
}

void CudaQueue::fill(void* to, int value, std::size_t bytes) {
  fill_bytes(to, value, bytes, stream());
  wait();
}

void CudaQueue::wait() { synchronize(stream()); }

std::unique_ptr<DeviceQueue> make_cuda_queue(int index) {
  return std::make_unique<CudaQueue>(index);
}

std::shared_ptr<std::byte> allocate_on_gpu(Device device, std::size_t bytes) {
  int num_devices = 0;
  cuda::check_cuda(cudaGetDeviceCount(&num_devices), "cudaGetDeviceCount");
  require(device.index >= 0 && device.index < num_devices, Errc::kNotAvailable,
          "tensor: {} was asked for, this process has {} GPUs", name_of(device), num_devices);
  const cuda::DeviceGuard guard(device.index);
  // Never null: a tensor without elements has memory too.
  const auto owner = std::make_shared<cuda::DeviceBuffer>(std::max<std::size_t>(1, bytes));
  return {owner, owner->data()};
}

// In a stream of its own: the default stream would wait for streams of other threads, which may
// wait for this rank.
std::shared_ptr<std::byte> allocate_zeroed_on_gpu(Device device, std::size_t bytes) {
  const cuda::BesideCapture beside;
  std::shared_ptr<std::byte> memory = allocate_on_gpu(device, bytes);
  const cuda::DeviceGuard guard(device.index);
  const cuda::OwnedStream stream;
  cuda::check_cuda(cudaMemsetAsync(memory.get(), 0, bytes, stream.get()), "cudaMemsetAsync");
  cuda::check_cuda(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
  return memory;
}

void copy_bytes(void* to, const void* from, std::size_t bytes, Stream stream) {
  const cuda::DeviceGuard guard(stream.device().index);
  cuda::check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.get()),
                   "cudaMemcpyAsync");
}

void fill_bytes(void* to, int value, std::size_t bytes, Stream stream) {
  const cuda::DeviceGuard guard(stream.device().index);
  cuda::check_cuda(cudaMemsetAsync(to, value, bytes, stream.get()), "cudaMemsetAsync");
}

void synchronize(Stream stream) {
  const cuda::DeviceGuard guard(stream.device().index);
  cuda::check_cuda(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
}

std::shared_ptr<CUstream_st> make_stream(Device device) {
  const cuda::DeviceGuard guard(device.index);
  const auto owner = std::make_shared<cuda::OwnedStream>();
  return {owner, owner->get()};
}

std::shared_ptr<void> record_event(Stream stream) {
  const cuda::DeviceGuard guard(stream.device().index);
  cudaEvent_t event = nullptr;
  cuda::check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                   "cudaEventCreateWithFlags");
  std::shared_ptr<void> owner(event,
                              [](void* made) { cudaEventDestroy(static_cast<cudaEvent_t>(made)); });
  cuda::check_cuda(cudaEventRecord(event, stream.get()), "cudaEventRecord");
  return owner;
}

void wait_event(void* event, Stream stream) {
  const cuda::DeviceGuard guard(stream.device().index);
  cuda::check_cuda(cudaStreamWaitEvent(stream.get(), static_cast<cudaEvent_t>(event), 0),
                   "cudaStreamWaitEvent");
}

}  // namespace switchyard
