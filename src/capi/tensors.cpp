// SPDX-License-Identifier: Apache-2.0

#include "capi/tensors.h"

#include <algorithm>
#include <cstddef>
#include <span>

#include "capi/call.h"
#include "core/strided_view.h"

namespace switchyard::capi {
namespace {

static_assert(sizeof(sy_tensor) == 48 && offsetof(sy_tensor, device) == 8 &&
              offsetof(sy_tensor, ndim) == 16 && offsetof(sy_tensor, dtype) == 20 &&
              offsetof(sy_tensor, shape) == 24 && offsetof(sy_tensor, strides) == 32 &&
              offsetof(sy_tensor, byte_offset) == 40);

struct DTypePair {
  DType ours;
  sy_dtype dlpack;
};
constexpr std::array<DTypePair, 14> kDTypes{{{DType::kF32, SY_F32},
                                             {DType::kF16, SY_F16},
                                             {DType::kBF16, SY_BF16},
                                             {DType::kE4M3, SY_E4M3},
                                             {DType::kE5M2, SY_E5M2},
                                             {DType::kE2M1, SY_E2M1},
                                             {DType::kE2M3, SY_E2M3},
                                             {DType::kE3M2, SY_E3M2},
                                             {DType::kE8M0, SY_E8M0},
                                             {DType::kI8, SY_I8},
                                             {DType::kU8, SY_U8},
                                             {DType::kU16, SY_U16},
                                             {DType::kI32, SY_I32},
                                             {DType::kI64, SY_I64}}};

// Strides that stay inside 63 bits, so that no offset overflows.
void check_strides(const sy_tensor& tensor, const char* name) {
  std::int64_t end = 0;
  for (int dim = 0; dim < tensor.ndim; ++dim) {
    const std::int64_t stride = tensor.strides[dim];
    check(stride >= 0, "{}: strides[{}] is {}, must be at least 0", name, dim, stride);
    const std::int64_t steps = std::max<std::int64_t>(0, tensor.shape[dim] - 1);
    std::int64_t extent = 0;
    check(!__builtin_mul_overflow(steps, stride, &extent) &&
              !__builtin_add_overflow(end, extent, &end) && end < INT64_MAX / 16,
          "{}: strides[{}] is {} and shape[{}] is {}, which no memory holds", name, dim, stride,
          dim, tensor.shape[dim]);
  }
}

// Two fp4 elements per lane pair, as torch counts them: the last dimension doubles.
struct Elements {
  std::array<std::int64_t, kMaxDims> shape{};
  std::array<std::int64_t, kMaxDims> strides{};
};
Elements elements_of(const sy_tensor& tensor, const char* name) {
  Elements elements;
  const int last = tensor.ndim - 1;
  const bool is_paired = tensor.dtype.lanes == 2;
  for (int dim = 0; dim <= last; ++dim) {
    elements.shape[static_cast<std::size_t>(dim)] = tensor.shape[dim];
    elements.strides[static_cast<std::size_t>(dim)] =
        tensor.strides == nullptr ? 0 : tensor.strides[dim] * (is_paired && dim != last ? 2 : 1);
  }
  if (!is_paired) return elements;
  check(last >= 0, "{}: pairs of e2m1 without a dimension, must have at least one", name);
  check(tensor.strides == nullptr || tensor.strides[last] == 1 || tensor.shape[last] <= 1,
        "{}: pairs of e2m1 have stride {} in the last dimension, must be contiguous there", name,
        tensor.strides == nullptr ? 1 : tensor.strides[last]);
  check(tensor.shape[last] <= INT64_MAX / 2, "{}: shape[{}] is {}, which no memory holds", name,
        last, tensor.shape[last]);
  elements.shape[static_cast<std::size_t>(last)] *= 2;
  return elements;
}

const std::byte* data_of(const sy_tensor& tensor, DType dtype, const char* name) {
  bool is_empty = false;
  for (int dim = 0; dim < tensor.ndim; ++dim) is_empty |= tensor.shape[dim] == 0;
  check(tensor.data != nullptr || is_empty, "{}: data is NULL, but the tensor is not empty", name);
  const auto* data = static_cast<const std::byte*>(tensor.data);
  if (data == nullptr) return data;
  data += tensor.byte_offset;
  const auto element_bytes = static_cast<std::uintptr_t>(std::max(8, bits_of(dtype)) / 8);
  check(reinterpret_cast<std::uintptr_t>(data) % element_bytes == 0,
        "{}: its first element is at {}, must be aligned to the {} bytes of {}", name,
        fmt::ptr(data), element_bytes, name_of(dtype));
  return data;
}

}  // namespace

DType dtype_from_dlpack(sy_dtype dtype, const char* name) {
  for (const DTypePair& pair : kDTypes) {
    const bool may_pair = pair.ours == DType::kE2M1 && dtype.lanes == 2;
    if (dtype.code == pair.dlpack.code && dtype.bits == pair.dlpack.bits &&
        (dtype.lanes == 1 || may_pair)) {
      return pair.ours;
    }
  }
  check(false,
        "{}: DLPack type code {}, {} bits, {} lanes is not supported; c/base.h lists "
        "the types",
        name, int{dtype.code}, int{dtype.bits}, int{dtype.lanes});
  return {};
}

sy_dtype to_dlpack(DType dtype) {
  const auto* pair = std::find_if(kDTypes.begin(), kDTypes.end(),
                                  [&](const DTypePair& p) { return p.ours == dtype; });
  return pair->dlpack;
}

Device device_of(sy_device device, const char* name) {
  const int type = static_cast<int>(device.device_type);
  check(type == SY_CPU || type == SY_CUDA || type == SY_CUDA_HOST,
        "{}: device type {}, must be {} (CPU), {} (CUDA) or {} (pinned host memory)", name, type,
        int{SY_CPU}, int{SY_CUDA}, int{SY_CUDA_HOST});
  check(device.device_id >= 0, "{}: device id {}, must be at least 0", name, device.device_id);
  if (type == SY_CUDA) return Device::cuda(device.device_id);
  check(type != SY_CPU || device.device_id == 0, "{}: device id {} of the CPU, must be 0", name,
        device.device_id);
  return Device::cpu();
}

Device device_or_cpu(sy_device device, const char* name) {
  const bool is_zero = static_cast<int>(device.device_type) == 0 && device.device_id == 0;
  return is_zero ? Device::cpu() : device_of(device, name);
}

sy_device to_dlpack(Device device) {
  sy_device result{};
  result.device_type =
      static_cast<decltype(result.device_type)>(device.is_cpu() ? SY_CPU : SY_CUDA);
  result.device_id = device.index;
  return result;
}

TensorView view_of(const sy_tensor* tensor, const char* name) {
  check(tensor != nullptr, "{} is NULL, must be a tensor", name);
  const DType dtype = dtype_from_dlpack(tensor->dtype, name);
  const Device device = device_of(tensor->device, name);
  const int ndim = tensor->ndim;
  check(ndim >= 0 && ndim <= kMaxDims, "{}: ndim is {}, must be from 0 to {}", name, ndim,
        kMaxDims);
  check(ndim == 0 || tensor->shape != nullptr, "{}: shape is NULL, but ndim is {}", name, ndim);
  for (int dim = 0; dim < ndim; ++dim) {
    check(tensor->shape[dim] >= 0, "{}: shape[{}] is {}, must be at least 0", name, dim,
          tensor->shape[dim]);
  }
  if (tensor->strides != nullptr) check_strides(*tensor, name);
  const std::byte* data = data_of(*tensor, dtype, name);
  const Elements elements = elements_of(*tensor, name);
  const auto num_dims = static_cast<std::size_t>(ndim);
  const std::span<const std::int64_t> shape(elements.shape.data(), num_dims);
  if (tensor->strides == nullptr) return {data, dtype, shape, device};
  return strided_view(data, dtype, shape, {elements.strides.data(), num_dims}, device);
}

TensorView optional_view(const sy_tensor* tensor, const char* name) {
  return tensor == nullptr ? TensorView{} : view_of(tensor, name);
}

std::vector<TensorView> views_of(const sy_tensor* tensors, std::size_t count, const char* name) {
  check(count == 0 || tensors != nullptr, "{} is NULL, must be {} tensors", name, count);
  std::vector<TensorView> views;
  for (std::size_t i = 0; i < count; ++i) views.push_back(view_of(&tensors[i], name));
  return views;
}

Stream stream_of(void* stream, Device device) {
  if (device.is_cpu()) {
    check(stream == nullptr, "stream is {}, but the work is on the CPU; pass NULL",
          fmt::ptr(stream));
    return Stream::host();
  }
  if (stream == nullptr) return Stream::default_of(device);
  return Stream::cuda(static_cast<CUstream_st*>(stream), device.index);
}

const sy_tensor* HeldTensor::set(const TensorView& view) {
  if (!view.has_value()) return nullptr;
  for (int dim = 0; dim < view.num_dims(); ++dim) {
    shape_[static_cast<std::size_t>(dim)] = view.shape(dim);
    strides_[static_cast<std::size_t>(dim)] = view.stride(dim);
  }
  tensor_.data = view.data();
  tensor_.device = to_dlpack(view.device());
  tensor_.ndim = view.num_dims();
  tensor_.dtype = to_dlpack(view.dtype());
  tensor_.shape = shape_.data();
  tensor_.strides = strides_.data();
  tensor_.byte_offset = 0;
  return &tensor_;
}

}  // namespace switchyard::capi
