// SPDX-License-Identifier: Apache-2.0

#include "module/cuda_queue.h"

#include "core/fail.h"
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
  const auto owner = std::make_shared<cuda::DeviceBuffer>(bytes);
  return {owner, owner->data()};
}

void CudaQueue::copy(void* to, const void* from, std::size_t bytes) {
  copy_async(to, from, bytes, stream());
  wait();
}

void CudaQueue::copy_async(void* to, const void* from, std::size_t bytes, Stream stream) {
  cuda::check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.get()),
                   "cudaMemcpyAsync");
}

void CudaQueue::fill(void* to, int value, std::size_t bytes) {
  cuda::check_cuda(cudaMemsetAsync(to, value, bytes, stream_.get()), "cudaMemsetAsync");
  wait();
}

void CudaQueue::wait() {
  cuda::check_cuda(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
}

std::unique_ptr<DeviceQueue> make_cuda_queue(int index) {
  return std::make_unique<CudaQueue>(index);
}

}  // namespace switchyard
