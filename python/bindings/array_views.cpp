// SPDX-License-Identifier: Apache-2.0
//
// How each kind of array shows its memory: numpy by __array_interface__, which works for the types
// of ml_dtypes too; torch by data_ptr(), which works for every dtype of every version; all others
// by DLPack.

#include <algorithm>
#include <array>
#include <string>

#include "core/fail.h"
#include "dlpack.h"
#include "dtypes.h"
#include "errors.h"
#include "streams.h"
#include "tensors.h"

namespace switchyard::python {
namespace {

struct Sizes {
  std::array<std::int64_t, kMaxDims> values{};
  std::size_t count = 0;

  std::span<const std::int64_t> span() const { return {values.data(), count}; }
  bool has_zero() const { return std::find(span().begin(), span().end(), 0) != span().end(); }
};

Sizes sizes_from(nb::handle sequence) {
  Sizes sizes;
  const std::size_t count = nb::len(sequence);
  require(count <= kMaxDims, Errc::kInvalidArgument, "{} dimensions, must be at most {}", count,
          kMaxDims);
  for (const nb::handle size : nb::borrow<nb::sequence>(sequence)) {
    sizes.values[sizes.count++] = nb::cast<std::int64_t>(size);
  }
  return sizes;
}

// Why torch shows no memory of a tensor: sparse ones have none, those of functorch and of some fake
// modes raise.
[[noreturn]] void fail_without_memory(nb::handle array, const char* name,
                                      const nb::python_error& error) {
  const std::string layout = text_of(array.attr("layout"));
  if (layout != "torch.strided") {
    fail(Errc::kInvalidArgument, "{}: its layout is {}, must be torch.strided; call to_dense()",
         name, layout);
  }
  const std::string reason = text_of(error.value());
  fail(Errc::kInvalidArgument, "{}: torch shows no memory of it ({}), must have storage", name,
       reason.substr(0, reason.find('\n')));
}

Device device_of_dlpack(std::int32_t type, std::int32_t index) {
  constexpr std::int32_t kPinned = 3;
  if (type == static_cast<std::int32_t>(DeviceType::kCpu) || type == kPinned) return Device::cpu();
  require(type == static_cast<std::int32_t>(DeviceType::kCuda), Errc::kInvalidArgument,
          "DLPack device type {}, must be 1 (CPU) or 2 (CUDA)", type);
  return Device::cuda(index);
}

// Two fp4 per byte: the library counts elements, torch and numpy count bytes.
TensorView unpacked(const TensorView& bytes) {
  Sizes shape, strides;
  for (int dim = 0; dim < bytes.num_dims(); ++dim, ++shape.count, ++strides.count) {
    const bool is_last = dim == bytes.num_dims() - 1;
    shape.values[shape.count] = bytes.shape(dim) * (is_last ? 2 : 1);
    strides.values[strides.count] = bytes.stride(dim) * (is_last ? 1 : 2);
  }
  return make_view(bytes.data(), DType::kE2M1, shape.span(), strides.span(), bytes.device());
}

nb::object call_dlpack(nb::handle array, Device device, Stream stream) {
  const nb::object method = array.attr("__dlpack__");
  const nb::object number =
      device.is_cuda() ? nb::object(nb::int_(dlpack_number(stream))) : nb::object(nb::none());
  try {
    return method(nb::arg("stream") = number, nb::arg("max_version") = nb::make_tuple(1, 0));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) throw;  // older than DLPack 1.0
  }
  return device.is_cuda() ? method(nb::arg("stream") = number) : method();
}

}  // namespace

Device device_of_torch(nb::handle array) {
  if (!nb::cast<bool>(array.attr("is_cuda"))) {
    const nb::object device = array.attr("device");
    if (text_of(device.attr("type")) != "cpu") {
      fail(Errc::kInvalidArgument, "it is on {}, must be on cpu or cuda", text_of(device));
    }
    return Device::cpu();
  }
  return Device::cuda(nb::cast<std::int32_t>(array.attr("get_device")()));
}

Arrays::Found Arrays::from_numpy(nb::handle array) {
  const nb::object interface = array.attr("__array_interface__");
  const DType dtype = dtype_from(array.attr("dtype"));
  const nb::object data = interface["data"];
  const Sizes shape = sizes_from(interface["shape"]);
  const nb::object byte_strides = interface["strides"];
  Sizes strides;
  if (!byte_strides.is_none() && !shape.has_zero()) {
    strides = sizes_from(byte_strides);
    const std::int64_t size = bits_of(dtype) / 8;
    for (std::int64_t& stride : std::span(strides.values.data(), strides.count)) {
      require(stride >= 0 && stride % size == 0, Errc::kInvalidArgument,
              "a stride of {} bytes, must be a multiple of the {} bytes of a {}, from 0", stride,
              size, name_of(dtype));
      stride /= size;
    }
  }
  void* pointer = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(data[0]));
  return {make_view(pointer, dtype, shape.span(), strides.span(), Device::cpu()),
          nb::cast<bool>(data[1])};
}

Arrays::Found Arrays::from_torch(nb::handle array, const char* name) {
  try {
    return view_of_torch(array, name);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_RuntimeError)) throw;
    fail_without_memory(array, name, error);
  }
}

// With the negative bit, as of torch.conj(z).imag, memory has the other sign: torch makes a copy.
Arrays::Found Arrays::view_of_torch(nb::handle given, const char* name) {
  const Device device = device_of_torch(given);
  const DType dtype = dtype_from(given.attr("dtype"));
  nb::object array = nb::borrow(given);
  const bool is_resolved = nb::cast<bool>(given.attr("is_neg")());
  if (is_resolved) {
    require(device.is_cpu() || !names_stream(), Errc::kInvalidArgument,
            "{}: its negative bit is set, and torch's stream may be another; call resolve_neg()",
            name);
    array = given.attr("resolve_neg")();
    held_.push_back(array);
  }
  if (device.is_cuda()) {
    has_torch_ = true;
    torch_.push_back({array});
  }
  void* pointer = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(array.attr("data_ptr")()));
  const Sizes shape = sizes_from(array.attr("shape"));
  const Sizes strides = sizes_from(array.attr("stride")());
  const DType stored = dtype == DType::kE2M1 ? DType::kU8 : dtype;
  const TensorView view = make_view(pointer, stored, shape.span(), strides.span(), device);
  return {stored == dtype ? view : unpacked(view), false, is_resolved};
}

Arrays::Found Arrays::from_dlpack(nb::handle array) {
  const nb::object place = array.attr("__dlpack_device__")();
  const Device device =
      device_of_dlpack(nb::cast<std::int32_t>(place[0]), nb::cast<std::int32_t>(place[1]));
  const Stream stream = stream_so_far(device);
  if (device.is_cuda()) imported_ = stream;
  const nb::object capsule = call_dlpack(array, device, stream);
  held_.push_back(capsule);  // not consumed: its destructor gives the memory back
  const dlpack::Tensor* tensor = nullptr;
  bool is_read_only = false;
  if (PyCapsule_IsValid(capsule.ptr(), dlpack::kVersionedName)) {
    const auto* managed = static_cast<dlpack::Versioned*>(
        PyCapsule_GetPointer(capsule.ptr(), dlpack::kVersionedName));
    require(managed->major == dlpack::kMajor, Errc::kInvalidArgument,
            "DLPack {}.{}, must be of version {}", managed->major, managed->minor, dlpack::kMajor);
    tensor = &managed->tensor;
    is_read_only = (managed->flags & dlpack::kReadOnly) != 0;
  } else {
    if (!PyCapsule_IsValid(capsule.ptr(), dlpack::kName))
      fail_type("__dlpack__ returned", capsule, "a capsule of DLPack");
    tensor =
        &static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule.ptr(), dlpack::kName))->tensor;
  }
  require(tensor->num_dims >= 0 && tensor->num_dims <= kMaxDims, Errc::kInvalidArgument,
          "{} dimensions, must be at most {}", tensor->num_dims, kMaxDims);
  const auto num_dims = static_cast<std::size_t>(tensor->num_dims);
  require(tensor->shape != nullptr || num_dims == 0, Errc::kInvalidArgument,
          "DLPack's shape is NULL, must have {} sizes", num_dims);
  auto* data = static_cast<std::byte*>(tensor->data);
  std::span<const std::int64_t> strides;
  if (tensor->strides != nullptr) strides = {tensor->strides, num_dims};
  return {make_view(data == nullptr ? nullptr : data + tensor->byte_offset,
                    dtype_from_dlpack(tensor->code, tensor->bits, tensor->lanes),
                    {tensor->shape, num_dims}, strides, device),
          is_read_only};
}

}  // namespace switchyard::python
