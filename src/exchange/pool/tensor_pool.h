// SPDX-License-Identifier: Apache-2.0
//
// tensor_pool.h: memory of results. On CPUs each has its own. On a GPU it is used again: taking and
// freeing memory may wait for kernels, which may wait for a peer that shares the GPU, and neither
// may happen while a graph is captured.
#pragma once

#include <initializer_list>
#include <memory>
#include <span>

#include "switchyard/tensor.h"

namespace switchyard {

/// Copies are the same pool.
///
/// - On a GPU a tensor's memory comes back with its last owner, and a later call may be given it:
///   ordered in the streams of the calls, as the received rows of an exchange are.
/// - Memory is taken from the GPU only when no tensor of about that size has come back and the slab
///   for small ones is full.
class TensorPool {
 public:
  explicit TensorPool(Device device);

  Device device() const { return device_; }
  /// On CPUs filled with 0, on a GPU not.
  Tensor make(DType dtype, std::span<const std::int64_t> shape) const;
  Tensor make(DType dtype, std::initializer_list<std::int64_t> shape) const {
    return make(dtype, std::span(shape.begin(), shape.size()));
  }

 private:
  class Blocks;
  Device device_;
  std::shared_ptr<Blocks> blocks_;
};

}  // namespace switchyard
