// SPDX-License-Identifier: Apache-2.0
//
// device_queue.h: memory of one GPU and a stream of work on it, for code above the module that has
// no CUDA header: the command, measurements and checks.
#pragma once

#include <cstddef>
#include <memory>

#include "switchyard/stream.h"

namespace switchyard {

/// Memory of a GPU; released with the last copy.
using DeviceMemory = std::shared_ptr<std::byte>;

/// Made by CudaModule::make_queue, which makes its GPU current for the calling thread; that thread
/// must use it. Errors of all members: kOutOfMemory, kSystem.
class DeviceQueue {
 public:
  DeviceQueue() = default;
  DeviceQueue(const DeviceQueue&) = delete;
  DeviceQueue& operator=(const DeviceQueue&) = delete;
  virtual ~DeviceQueue() = default;

  virtual Device device() const = 0;
  virtual Stream stream() = 0;           ///< its own; does not wait for the default stream
  virtual std::size_t free_bytes() = 0;  ///< of the GPU, now

  virtual DeviceMemory allocate(std::size_t bytes) = 0;  ///< not initialised
  /// Each side may be device or host memory. Waits.
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  virtual void copy_async(void* to, const void* from, std::size_t bytes, Stream stream) = 0;
  /// Every byte becomes the low byte of `value`. Waits.
  virtual void fill(void* to, int value, std::size_t bytes) = 0;
  /// Waits for all work of the stream.
  virtual void wait() = 0;
};

}  // namespace switchyard
