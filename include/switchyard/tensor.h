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
#include <utility>

#include "switchyard/device.h"
#include "switchyard/dtype.h"
#include "switchyard/export.h"
#include "switchyard/stream.h"

namespace switchyard {

inline constexpr int kMaxDims = 6;  ///< dimensions that a tensor may have

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

/// Pointer, dtype, shape, strides and device of memory that somebody else owns. A plain value.
///
/// Strides count elements. A default-made view is absent: `has_value()` is false, which is how
/// optional tensors are passed. Functions never write to a view that they document as an input.
class SWITCHYARD_API TensorView {
 public:
  TensorView() = default;

  /// @{ Contiguous, row-major.
  ///
  /// Errors: kInvalidArgument when a size is negative, there are more than kMaxDims, or the bytes
  /// overflow.
  TensorView(const void* data, DType dtype, std::span<const std::int64_t> shape,
             Device device = Device::cpu());
  TensorView(const void* data, DType dtype, std::initializer_list<std::int64_t> shape,
             Device device = Device::cpu())
      : TensorView(data, dtype, std::span(shape.begin(), shape.size()), device) {}
  /// @}

  /// Any strides, in elements. A tensor without elements is contiguous whatever they are.
  TensorView(const void* data, DType dtype, std::initializer_list<std::int64_t> shape,
             std::initializer_list<std::int64_t> strides, Device device = Device::cpu());

  /// A contiguous view of elements of T.
  template <typename T>
  static TensorView of(const T* data, std::initializer_list<std::int64_t> shape,
                       Device device = Device::cpu()) {
    return TensorView(data, dtype_of<T>::value, shape, device);
  }

  /// @{ What it refers to. `as` casts the pointer only; nothing is checked.
  bool has_value() const noexcept { return num_dims_ >= 0; }
  void* data() const noexcept { return data_; }
  template <typename T>
  T* as() const noexcept {
    return static_cast<T*>(data_);
  }
  DType dtype() const noexcept { return dtype_; }
  Device device() const noexcept { return device_; }
  int num_dims() const noexcept { return num_dims_ < 0 ? 0 : num_dims_; }
  std::int64_t shape(int dim) const noexcept { return shape_[static_cast<std::size_t>(dim)]; }
  std::int64_t stride(int dim) const noexcept { return strides_[static_cast<std::size_t>(dim)]; }
  std::int64_t num_elements() const noexcept;
  bool is_contiguous() const noexcept;
  /// @}

  /// Bytes of a contiguous tensor of this shape; fp4 and fp6 elements are packed.
  std::size_t num_bytes() const noexcept;

  /// For messages: "bf16 [128, 7168]", "f32 [8] on cuda:0".
  std::string describe() const;

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::kF32;
  int num_dims_ = -1;
  Device device_{};
  std::array<std::int64_t, kMaxDims> shape_{};
  std::array<std::int64_t, kMaxDims> strides_{};
};

/// A contiguous tensor that owns its memory: zero-filled, aligned to 128 bytes. Move-only.
class SWITCHYARD_API Tensor {
 public:
  /// @{ Absent, as a default-made view. One that was moved from is only destroyed or assigned to.
  Tensor() = default;
  Tensor(Tensor&&) noexcept = default;
  Tensor& operator=(Tensor&&) noexcept = default;
  /// @}

  /// @{ On a GPU: plain device memory; returns when it is zeroed, so not while a graph is captured.
  ///
  /// Errors: kInvalidArgument as TensorView; kOutOfMemory; kNotAvailable (no such GPU).
  Tensor(DType dtype, std::span<const std::int64_t> shape, Device device = Device::cpu());
  Tensor(DType dtype, std::initializer_list<std::int64_t> shape, Device device = Device::cpu())
      : Tensor(dtype, std::span(shape.begin(), shape.size()), device) {}
  /// @}

  /// Of memory that `owner` keeps alive; nothing is copied or cleared.
  ///
  ///   view  contiguous
  Tensor(std::shared_ptr<std::byte> owner, const TensorView& view)
      : memory_(std::move(owner)), view_(view) {}

  /// @{ As a view, and what TensorView has.
  const TensorView& view() const noexcept { return view_; }
  operator const TensorView&() const noexcept { return view_; }
  void* data() const noexcept { return view_.data(); }
  template <typename T>
  T* as() const noexcept {
    return view_.as<T>();
  }
  DType dtype() const noexcept { return view_.dtype(); }
  Device device() const noexcept { return view_.device(); }
  std::int64_t shape(int dim) const noexcept { return view_.shape(dim); }
  /// @}

  /// @{ A copy on `device`. The same as copy_to.
  Tensor to(Device device, Stream stream) const;
  Tensor to(Device device) const;
  /// @}

 private:
  std::shared_ptr<std::byte> memory_;
  TensorView view_;
};

/// A contiguous copy of `from` on `device`, ordered in `stream` behind what fills `from`. It is
/// complete when the call returns.
///
///   from    contiguous; on any device
///   stream  of the GPU that takes part; without it: that GPU's default stream, or the host
///
/// Not while a graph is captured. Errors: kInvalidArgument (strides; a stream of another device);
/// kOutOfMemory, kNotAvailable, kSystem.
/// @{
SWITCHYARD_API Tensor copy_to(const TensorView& from, Device device, Stream stream);
SWITCHYARD_API Tensor copy_to(const TensorView& from, Device device);
/// @}

}  // namespace switchyard
