// SPDX-License-Identifier: Apache-2.0
//
// device_arena.h: the GPU memory of one rank of a test, allocated up front. Ranks that share a GPU
// must not allocate memory or load kernels while kernels of their peers wait: the runtime would
// wait for those kernels, and they wait for this rank.
#pragma once

#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "switchyard/stream.h"
#include "switchyard/tensor.h"

#include "cuda/base/check.h"
#include "cuda/base/memory.h"

namespace switchyard::test {

/// Call this before the first use of CUDA.
inline void load_kernels_eagerly() {
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
}

class DeviceArena {
 public:
  explicit DeviceArena(std::size_t bytes) : memory_(bytes) {}

  void clear() { used_ = 0; }
  std::byte* allocate(std::size_t bytes) {
    const std::size_t at = used_;
    used_ += (bytes + 511) / 256 * 256;
    if (used_ > memory_.size_bytes()) throw std::bad_alloc();
    return memory_.data() + at;
  }
  /// Returns a contiguous tensor with the shape of `host`, and its elements if it has memory.
  TensorView upload(const TensorView& host) {
    if (!host.has_value()) return {};
    std::byte* to = allocate(host.num_bytes());
    if (host.num_bytes() > 0) copy(to, host.data(), host.num_bytes());
    std::vector<std::int64_t> shape;
    for (int d = 0; d < host.num_dims(); ++d) shape.push_back(host.shape(d));
    return TensorView(to, host.dtype(), shape);
  }
  void copy(void* to, const void* from, std::size_t bytes) const {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_.get()), "copy");
    wait();
  }
  void wait() const { check_cuda(cudaStreamSynchronize(stream_.get()), "wait"); }
  Stream stream() const { return stream_.get(); }

 private:
  DeviceBuffer memory_;
  OwnedStream stream_;
  std::size_t used_ = 0;
};

/// A host copy of a GPU tensor with the same strides. An absent tensor stays absent.
class Downloaded {
 public:
  Downloaded() = default;
  Downloaded(const DeviceArena& arena, const TensorView& device) : view(device) {
    if (!device.has_value()) return;
    std::int64_t last = device.num_elements() == 0 ? 0 : 1;
    for (int d = 0; d < device.num_dims() && last > 0; ++d) {
      last += (device.shape(d) - 1) * device.stride(d);
    }
    bytes_.resize(static_cast<std::size_t>((last * bits_of(device.dtype()) + 7) / 8));
    if (!bytes_.empty()) arena.copy(bytes_.data(), device.data(), bytes_.size());
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(bytes_.data());
  }

  TensorView view;  ///< shape and strides; the data pointer is on the GPU

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace switchyard::test
