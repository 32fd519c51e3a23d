// SPDX-License-Identifier: Apache-2.0
//
// memory.h: device and pinned host memory, streams and events that release themselves.
#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>
#include <utility>

namespace switchyard::cuda {

/// Makes `device` current for a scope.
class DeviceGuard {
 public:
  /// Errors: kNotAvailable, kSystem.
  explicit DeviceGuard(int device);
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard();

 private:
  int previous_ = 0;
};

/// Memory of the device that was current when it was made. Move-only; zero bytes are no memory.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// Not initialised. Errors: kOutOfMemory.
  explicit DeviceBuffer(std::size_t bytes);
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~DeviceBuffer();

  std::byte* data() const noexcept { return data_; }
  template <typename T>
  T* as() const noexcept {
    return reinterpret_cast<T*>(data_);
  }
  std::size_t size_bytes() const noexcept { return bytes_; }

 private:
  void swap(DeviceBuffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Host memory that devices can address, zero-filled. `device_data` is its address on a device.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  /// Errors: kOutOfMemory.
  explicit PinnedBuffer(std::size_t bytes);
  PinnedBuffer(PinnedBuffer&& other) noexcept { std::swap(data_, other.data_); }
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~PinnedBuffer();

  template <typename T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

/// A stream of its own, not synchronised with the default one. Move-only.
class OwnedStream {
 public:
  OwnedStream();
  OwnedStream(OwnedStream&& other) noexcept : stream_(std::exchange(other.stream_, nullptr)) {}
  OwnedStream& operator=(OwnedStream&& other) noexcept {
    std::swap(stream_, other.stream_);
    return *this;
  }
  ~OwnedStream();
  cudaStream_t get() const noexcept { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace switchyard::cuda
