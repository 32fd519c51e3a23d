// SPDX-License-Identifier: Apache-2.0
//
// tensors.h: the one place where DLPack's tensors become views, and back.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "switchyard/c/base.h"
#include "switchyard/stream.h"
#include "switchyard/tensor.h"

namespace switchyard::capi {

DType dtype_from_dlpack(sy_dtype dtype, const char* name);
sy_dtype to_dlpack(DType dtype);
Device device_of(sy_device device, const char* name);
/// Zero: the CPU.
Device device_or_cpu(sy_device device, const char* name);
sy_device to_dlpack(Device device);

/// A checked view. Errors: kInvalidArgument, which `name`s the argument.
TensorView view_of(const sy_tensor* tensor, const char* name);
/// NULL: an absent view.
TensorView optional_view(const sy_tensor* tensor, const char* name);
std::vector<TensorView> views_of(const sy_tensor* tensors, std::size_t count, const char* name);

/// The caller's stream of `device`. Errors: kInvalidArgument (a stream for the host).
Stream stream_of(void* stream, Device device);

/// A DLPack tensor with its shape and strides; it must not move while callers have its address.
class HeldTensor {
 public:
  /// The tensor, or NULL for an absent view. Valid until the next set.
  const sy_tensor* set(const TensorView& view);
  /// What was set last.
  const sy_tensor& get() const { return tensor_; }

 private:
  sy_tensor tensor_{};
  std::array<std::int64_t, kMaxDims> shape_{};
  std::array<std::int64_t, kMaxDims> strides_{};
};

}  // namespace switchyard::capi
