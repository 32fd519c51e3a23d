// SPDX-License-Identifier: Apache-2.0
//
// tensor.h: TensorView, which owns nothing, and Tensor, which owns its memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>

#include "switchyard/dtype.h"
#include "switchyard/export.h"

namespace switchyard {

inline constexpr int kMaxDims = 6;

/// The dtype of a C++ element type. Types without arithmetic of their own (bf16, f16, e4m3) are
/// handled as their bits, and name their dtype when a view is made.
template <typename T>
struct dtype_of;
template <>
struct dtype_of<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct dtype_of<std::int8_t> {
  static constexpr DType value = DType::kI8;
};
template <>
struct dtype_of<std::uint8_t> {
  static constexpr DType value = DType::kU8;
};
template <>
struct dtype_of<std::uint16_t> {
  static constexpr DType value = DType::kU16;
};
template <>
struct dtype_of<std::int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct dtype_of<std::int64_t> {
  static constexpr DType value = DType::kI64;
};

/// Pointer, dtype, shape and strides of host memory that somebody else owns. A plain value.
///
/// Strides count elements. A default-made view is absent: `has_value()` is false, which is how
/// optional tensors are passed. Functions never write to a view that they document as an input.
class SWITCHYARD_API TensorView {
 public:
  TensorView() = default;

  /// Contiguous, row-major.
  ///
  /// Errors: kInvalidArgument when a size is negative, there are more than kMaxDims, or the bytes
  /// overflow.
  TensorView(const void* data, DType dtype, std::span<const std::int64_t> shape);
  TensorView(const void* data, DType dtype, std::initializer_list<std::int64_t> shape)
      : TensorView(data, dtype, std::span(shape.begin(), shape.size())) {}

  /// Any strides, in elements.
  TensorView(const void* data, DType dtype, std::initializer_list<std::int64_t> shape,
             std::initializer_list<std::int64_t> strides);

  template <typename T>
  static TensorView of(const T* data, std::initializer_list<std::int64_t> shape) {
    return TensorView(data, dtype_of<T>::value, shape);
  }

  bool has_value() const noexcept { return num_dims_ >= 0; }
  void* data() const noexcept { return data_; }
  template <typename T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }
  DType dtype() const noexcept { return dtype_; }
  int num_dims() const noexcept { return num_dims_ < 0 ? 0 : num_dims_; }
  std::int64_t shape(int dim) const noexcept { return shape_[static_cast<std::size_t>(dim)]; }
  std::int64_t stride(int dim) const noexcept { return strides_[static_cast<std::size_t>(dim)]; }
  std::int64_t num_elements() const noexcept;
  bool is_contiguous() const noexcept;

  /// Bytes of a contiguous tensor of this shape; fp4 and fp6 elements are packed.
  std::size_t num_bytes() const noexcept;

  /// For messages: "bf16 [128, 7168]".
  std::string describe() const;

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  int num_dims_ = -1;
  std::array<std::int64_t, kMaxDims> shape_{};
  std::array<std::int64_t, kMaxDims> strides_{};
};

namespace detail {
struct ReleaseMemory {
  std::size_t bytes = 0;
  SWITCHYARD_API void operator()(std::byte* data) const noexcept;
};
}  // namespace detail

/// A contiguous tensor that owns its memory: zero-filled, 128-byte aligned. Move-only.
class SWITCHYARD_API Tensor {
 public:
  Tensor() = default;

  /// Errors: kInvalidArgument as TensorView; kOutOfMemory.
  Tensor(DType dtype, std::span<const std::int64_t> shape);
  Tensor(DType dtype, std::initializer_list<std::int64_t> shape)
      : Tensor(dtype, std::span(shape.begin(), shape.size())) {}

  const TensorView& view() const noexcept { return view_; }
  operator const TensorView&() const noexcept { return view_; }
  void* data() const noexcept { return view_.data(); }
  template <typename T>
  T* as() const noexcept {
    return view_.as<T>();
  }
  DType dtype() const noexcept { return view_.dtype(); }
  std::int64_t shape(int dim) const noexcept { return view_.shape(dim); }

 private:
  std::unique_ptr<std::byte, detail::ReleaseMemory> memory_;
  TensorView view_;
};

}  // namespace switchyard
