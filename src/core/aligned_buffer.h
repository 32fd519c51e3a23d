// SPDX-License-Identifier: Apache-2.0
//
// aligned_buffer.h: owned host memory, zero-filled and 128-byte aligned. Large buffers are mapped,
// so pages that are never touched cost nothing, and use huge pages where the system has them.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

namespace switchyard {

/// Allocates at least one byte, so the pointer is never null. Errors: kOutOfMemory, also when the
/// host has less memory available.
std::byte* allocate_zeroed(std::size_t bytes);
void release_zeroed(std::byte* data, std::size_t bytes) noexcept;

struct ReleaseZeroed {
  std::size_t bytes = 0;
  void operator()(std::byte* data) const noexcept { release_zeroed(data, bytes); }
};

class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t bytes) : data_(allocate_zeroed(bytes), ReleaseZeroed{bytes}) {}

  std::byte* data() const noexcept { return data_.get(); }
  template <typename T>
  T* as() const noexcept {
    return reinterpret_cast<T*>(data_.get());
  }
  std::size_t size_bytes() const noexcept { return data_.get_deleter().bytes; }

 private:
  std::unique_ptr<std::byte, ReleaseZeroed> data_;
};

}  // namespace switchyard
