// SPDX-License-Identifier: Apache-2.0
//
// memory.h: memory for the tensors that calls create: the caller's, or the library's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "switchyard/c/base.h"
#include "switchyard/tensor.h"

namespace switchyard::capi {

class Memory {
 public:
  /// `allocator` NULL: the library's. Errors: kInvalidArgument (a function is missing).
  Memory(const sy_allocator* allocator, Device device, void* stream);

  /// A contiguous tensor, which keeps its memory alive. Errors: kOutOfMemory, kInvalidArgument (the
  /// caller's memory is not aligned).
  Tensor make(DType dtype, std::span<const std::int64_t> shape) const;
  Tensor make(DType dtype, std::initializer_list<std::int64_t> shape) const {
    return make(dtype, std::span(shape.begin(), shape.size()));
  }

 private:
  sy_allocator allocator_;
  Device device_;
  void* stream_;
};

/// The caller's scratch. Errors: kInvalidArgument (NULL with a size).
std::span<std::byte> workspace_of(void* workspace, std::size_t bytes);

}  // namespace switchyard::capi
