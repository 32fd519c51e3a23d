// SPDX-License-Identifier: Apache-2.0
//
// device_tensors.h: tensors that an object takes for life on the GPU that is current when it is
// made. Taking memory may wait for the GPU, so all of it is taken in constructors.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <vector>

#include "switchyard/tensor.h"

#include "core/bytes.h"
#include "device/cuda_module.h"

namespace switchyard {

class DeviceTensors {
 public:
  /// Not initialised. Errors: kInvalidArgument (sizes), kOutOfMemory, kNotAvailable.
  TensorView allocate(DType dtype, std::initializer_list<std::int64_t> shape) {
    std::int64_t num_elements = 1;
    for (const std::int64_t extent : shape) num_elements = checked_mul(num_elements, extent);
    const std::int64_t bits = checked_mul<std::int64_t>(num_elements, bits_of(dtype));
    return TensorView(allocate_bytes(static_cast<std::size_t>(bits / 8 + (bits % 8 != 0))), dtype,
                      shape);
  }
  std::byte* allocate_bytes(std::size_t num_bytes) {
    // Never null: a tensor without elements has memory too.
    memory_.push_back(queue().allocate(std::max<std::size_t>(1, num_bytes)));
    size_bytes_ += num_bytes;
    return memory_.back().get();
  }
  /// With the elements of `values`.
  template <typename T>
  TensorView allocate_copy(DType dtype, std::initializer_list<std::int64_t> shape,
                           const std::vector<T>& values) {
    const TensorView view = allocate(dtype, shape);
    if (!values.empty()) queue().copy(view.data(), values.data(), values.size() * sizeof(T));
    return view;
  }
  void clear(const TensorView& view) { queue().fill(view.data(), 0, view.num_bytes()); }

  std::size_t size_bytes() const { return size_bytes_; }
  /// Gives the stream back; memory stays.
  void close() { queue_.reset(); }

 private:
  DeviceQueue& queue() {
    constexpr int kCurrentGpu = -1;
    if (queue_ == nullptr) queue_ = cuda_module().make_queue(kCurrentGpu);
    return *queue_;
  }

  std::unique_ptr<DeviceQueue> queue_;
  std::vector<DeviceMemory> memory_;
  std::size_t size_bytes_ = 0;
};

}  // namespace switchyard
