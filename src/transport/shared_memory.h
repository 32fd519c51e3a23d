// SPDX-License-Identifier: Apache-2.0
//
// shared_memory.h: unnamed memory that processes share: a memfd, sealed so that nobody can shrink
// it under a mapping. It exists as long as a descriptor or a mapping does.
#pragma once

#include <cstddef>
#include <utility>

#include "transport/socket.h"

namespace switchyard {

/// A shared mapping, unmapped by the destructor.
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

/// Zero-filled memory of fixed size, closed on exec. Errors: kOutOfMemory, kSystem.
Fd make_shared_memory(const char* label, std::size_t bytes);

/// Throws unless `memory`, received from another process, has this size and is sealed against
/// shrinking. Errors: kSystem.
void check_shared_memory(const Fd& memory, std::size_t bytes);

}  // namespace switchyard
