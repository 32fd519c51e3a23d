// SPDX-License-Identifier: Apache-2.0

#include "cuda/base/memory.h"

#include <cstring>

#include "cuda/base/check.h"

namespace switchyard::cuda {

DeviceGuard::DeviceGuard(int device) {
  check_cuda(cudaGetDevice(&previous_), "cudaGetDevice");
  if (device == previous_) return;
  check_cuda(cudaSetDevice(device), "cudaSetDevice");
  has_changed_ = true;
}

DeviceGuard::~DeviceGuard() {
  if (has_changed_) cudaSetDevice(previous_);
}

DeviceBuffer::DeviceBuffer(std::size_t bytes) : bytes_(bytes) {
  if (bytes > 0) check_cuda(cudaMalloc(reinterpret_cast<void**>(&data_), bytes), "cudaMalloc");
}

void DeviceBuffer::resize(std::size_t bytes, cudaStream_t stream) {
  bytes_ = 0;
  if (data_ != nullptr)
    check_cuda(cudaFreeAsync(std::exchange(data_, nullptr), stream), "cudaFree");
  if (bytes == 0) return;
  check_cuda(cudaMallocAsync(reinterpret_cast<void**>(&data_), bytes, stream), "cudaMalloc");
  bytes_ = bytes;
}

DeviceBuffer::~DeviceBuffer() { cudaFree(data_); }

PinnedBuffer::PinnedBuffer(std::size_t bytes) {
  if (bytes == 0) return;
  check_cuda(cudaHostAlloc(&data_, bytes, cudaHostAllocPortable | cudaHostAllocMapped),
             "cudaHostAlloc");
  std::memset(data_, 0, bytes);
}

PinnedBuffer::~PinnedBuffer() { cudaFreeHost(data_); }

OwnedStream::OwnedStream(Priority priority) {
  int lowest = 0;
  int highest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&lowest, &highest),
             "cudaDeviceGetStreamPriorityRange");
  check_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                          priority == Priority::kHigh ? highest : lowest),
             "cudaStreamCreateWithPriority");
}

OwnedStream::~OwnedStream() {
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

OwnedEvent::OwnedEvent() {
  check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate");
}

OwnedEvent::~OwnedEvent() {
  if (event_ != nullptr) cudaEventDestroy(event_);
}

void OwnedEvent::record(cudaStream_t stream) const {
  check_cuda(cudaEventRecord(event_, stream), "cudaEventRecord");
}

void OwnedEvent::make_wait(cudaStream_t stream) const {
  check_cuda(cudaStreamWaitEvent(stream, event_, 0), "cudaStreamWaitEvent");
}

}  // namespace switchyard::cuda
