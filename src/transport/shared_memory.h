// SPDX-License-Identifier: Apache-2.0
//
// shared_memory.h: memory that processes share and that has no name: a memfd, sealed so that nobody
// can shrink it under a mapping. It exists as long as a descriptor or a mapping does.
#pragma once

#include <cstddef>
#include <utility>

#include "transport/socket.h"

namespace switchyard {

/// A shared mapping; unmapped with the object.
class Mapping {
 public:
  Mapping() = default;
  /// Errors: kOutOfMemory, kSystem.
  Mapping(const Fd& memory, std::size_t bytes);
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();

  std::byte* data() const noexcept { return data_; }
  std::size_t size_bytes() const noexcept { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// Zero-filled, of fixed size, closed on exec. Errors: kOutOfMemory, kSystem.
Fd make_shared_memory(const char* label, std::size_t bytes);

/// Throws unless `memory`, which came from another process, has the size and cannot lose it.
/// Errors: kSystem.
void check_shared_memory(const Fd& memory, std::size_t bytes);

/// What the kernel reckons it could give without swapping (MemAvailable); 0 when it does not say.
std::size_t available_memory_bytes();

/// Errors: kOutOfMemory, with the numbers, when `num_ranks` windows of `bytes` exceed what there
/// is.
void require_memory(std::size_t bytes, int num_ranks);

}  // namespace switchyard
