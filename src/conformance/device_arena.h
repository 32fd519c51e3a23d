// SPDX-License-Identifier: Apache-2.0
//
// device_arena.h: tensors of the host on a GPU and back. All memory is taken at once: ranks that
// share a GPU must not allocate while the kernel of a peer waits for them.
#pragma once

#include <cstddef>

#include "switchyard/tensor.h"

#include "device/device_queue.h"

namespace switchyard::conformance {

/// Bytes from the first to behind the last element of a view, with what lies between.
std::size_t span_bytes(const TensorView& view);

class DeviceArena {
 public:
  /// The queue must outlive it.
  DeviceArena(DeviceQueue& queue, std::size_t bytes);

  /// A copy with the same strides; what lies between the elements is copied too. Absent stays
  /// absent. Errors: kOutOfMemory beyond the bytes of the arena.
  TensorView up(const TensorView& host);
  /// All bytes of a view, into as many of the host.
  void down(const TensorView& device, void* host);
  std::byte* allocate(std::size_t bytes);
  /// Everything that was given out is free again.
  void clear() { used_ = 0; }

 private:
  DeviceQueue& queue_;
  std::size_t bytes_;
  std::size_t used_ = 0;
  DeviceMemory memory_;
};

}  // namespace switchyard::conformance
