// SPDX-License-Identifier: Apache-2.0

#include "switchyard/tensor.h"

#include <algorithm>

#include "core/bytes.h"

namespace switchyard {
namespace {

// Counts bits first, so that packed fp4 and fp6 shapes round up only once.
std::size_t contiguous_bytes(DType dtype, std::span<const std::int64_t> shape) {
  std::int64_t elements = 1;
  for (const std::int64_t size : shape) elements = checked_mul(elements, size);
  const std::int64_t bits = checked_mul(elements, std::int64_t{bits_of(dtype)});
  return static_cast<std::size_t>(bits / 8 + (bits % 8 != 0 ? 1 : 0));
}

}  // namespace

Stream Stream::default_of(Device device) noexcept {
  constexpr std::uintptr_t kPerThread = 2;  // CUDA's cudaStreamPerThread
  return {device.is_cpu() ? nullptr : reinterpret_cast<CUstream_st*>(kPerThread), device};
}

std::string name_of(Device device) {
  return device.is_cpu() ? "cpu" : fmt::format("cuda:{}", device.index);
}

TensorView::TensorView(const void* data, DType dtype, std::span<const std::int64_t> shape,
                       Device device)
    : data_(const_cast<void*>(data)),
      dtype_(dtype),
      num_dims_(static_cast<int>(shape.size())),
      device_(device) {
  require(shape.size() <= kMaxDims, Errc::kInvalidArgument,
          "tensor: {} dimensions, must be at most {}", shape.size(), kMaxDims);
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    require(shape[dim] >= 0, Errc::kInvalidArgument, "tensor: size {} of dimension {} is negative",
            shape[dim], dim);
    shape_[dim] = shape[dim];
  }
  contiguous_bytes(dtype, shape);  // rejects shapes whose byte size overflows
  std::int64_t stride = 1;
  for (std::size_t dim = shape.size(); dim-- > 0;) {
    strides_[dim] = stride;
    stride = checked_mul(stride, std::max<std::int64_t>(1, shape[dim]));
  }
}

TensorView::TensorView(const void* data, DType dtype, std::initializer_list<std::int64_t> shape,
                       std::initializer_list<std::int64_t> strides, Device device)
    : TensorView(data, dtype, shape, device) {
  require(shape.size() == strides.size(), Errc::kInvalidArgument,
          "tensor: {} sizes, but {} strides", shape.size(), strides.size());
  std::copy(strides.begin(), strides.end(), strides_.begin());
}

std::int64_t TensorView::num_elements() const noexcept {
  if (num_dims_ < 0) return 0;
  std::int64_t elements = 1;
  for (int dim = 0; dim < num_dims_; ++dim) elements *= shape(dim);
  return elements;
}

// Without elements strides mean nothing, and libraries differ in those that they give.
bool TensorView::is_contiguous() const noexcept {
  if (num_elements() == 0) return true;
  std::int64_t expected = 1;
  for (int dim = num_dims_ - 1; dim >= 0; --dim) {
    if (shape(dim) != 1 && stride(dim) != expected) return false;
    expected *= shape(dim);
  }
  return true;
}

std::size_t TensorView::num_bytes() const noexcept {
  const std::int64_t bits = num_elements() * bits_of(dtype_);
  return static_cast<std::size_t>((bits + 7) / 8);
}

std::string TensorView::describe() const {
  if (!has_value()) return "absent";
  std::string text = fmt::format("{} [", name_of(dtype_));
  for (int dim = 0; dim < num_dims_; ++dim) {
    text += fmt::format("{}{}", dim == 0 ? "" : ", ", shape(dim));
  }
  text += "]";
  if (!is_contiguous()) {
    text += " with strides [";
    for (int dim = 0; dim < num_dims_; ++dim) {
      text += fmt::format("{}{}", dim == 0 ? "" : ", ", stride(dim));
    }
    text += "]";
  }
  if (!device_.is_cpu()) text += " on " + name_of(device_);
  return text;
}

}  // namespace switchyard
