// SPDX-License-Identifier: Apache-2.0
//
// memory.h: owners of device memory, pinned host memory and streams, and a guard for the current
// device.
#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>
#include <utility>

namespace switchyard::cuda {

/// Makes a device current for the lifetime of the guard.
class DeviceGuard {
 public:
  /// Errors: kNotAvailable, kSystem.
  explicit DeviceGuard(int device);
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard();

 private:
  int previous_ = 0;
  bool has_changed_ = false;
};

/// Memory on the device that was current at construction. Move-only. Zero bytes allocate nothing.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// Contents are uninitialized. Errors: kOutOfMemory.
  explicit DeviceBuffer(std::size_t bytes);
  DeviceBuffer(DeviceBuffer&& other) noexcept { swap(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    swap(other);
    return *this;
  }
  ~DeviceBuffer();

  /// Gives the memory back and takes other, in the order of the stream; contents are lost. For a
  /// buffer that is empty or was resized before. Errors: kOutOfMemory, kNotAvailable (a GPU without
  /// memory pools).
  void resize(std::size_t bytes, cudaStream_t stream);

  /// Forgets the memory without freeing it.
  void leave() noexcept {
    data_ = nullptr;
    bytes_ = 0;
  }

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

/// Zero-filled, pinned host memory that every device can address at the same address. Move-only.
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

/// A stream that does not synchronize with the default stream. Move-only.
class OwnedStream {
 public:
  enum class Priority { kNormal, kHigh };

  /// With high priority, CTAs of its kernels start before those of other streams that wait for
  /// room.
  explicit OwnedStream(Priority priority = Priority::kNormal);
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

/// An event without times, which counts as reached until it is recorded. Move-only.
class OwnedEvent {
 public:
  OwnedEvent();
  OwnedEvent(OwnedEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  OwnedEvent& operator=(OwnedEvent&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~OwnedEvent();
  cudaEvent_t get() const noexcept { return event_; }

  /// Reached when the stream has come here.
  void record(cudaStream_t stream) const;
  /// What comes next in the stream waits until the event is reached, as it was recorded last.
  void make_wait(cudaStream_t stream) const;

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace switchyard::cuda
