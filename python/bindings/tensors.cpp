// SPDX-License-Identifier: Apache-2.0
//
// The array arguments of a call. What kind an array is depends on its type alone and is looked up
// once per type; array_views.cpp has how each kind shows its memory.

#include "tensors.h"

#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <utility>

#include "core/fail.h"
#include "core/strided_view.h"
#include "dtypes.h"
#include "errors.h"
#include "gil.h"
#include "streams.h"

#include <nanobind/stl/vector.h>

namespace switchyard::python {
namespace {

enum class Kind { kOwn, kNumpy, kTorch, kDLPack, kOther };

bool is_class(nb::handle type, const char* module, const char* name) {
  return text_of(type.attr("__module__")) == module && text_of(type.attr("__name__")) == name;
}

Kind kind_of_type(nb::handle type) {
  if (type.is(nb::type<PyTensor>())) return Kind::kOwn;
  for (const nb::handle base : nb::borrow<nb::tuple>(type.attr("__mro__"))) {
    // Its memory also has what the mask hides.
    if (text_of(base.attr("__name__")) == "MaskedArray") return Kind::kOther;
    if (is_class(base, "numpy", "ndarray")) return Kind::kNumpy;
    if (is_class(base, "torch", "Tensor")) return Kind::kTorch;
  }
  return nb::hasattr(type, "__dlpack__") ? Kind::kDLPack : Kind::kOther;
}

// With the GIL. A reference keeps the address from being another type's; a program that makes types
// without end has those beyond the limit looked up each time.
Kind kind_of(nb::handle array) {
  constexpr std::size_t kMaxKnown = 64;
  static auto& known = *new std::map<PyObject*, Kind>;
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(array.ptr()));
  const auto found = known.find(type);
  if (found != known.end()) return found->second;
  const Kind kind = kind_of_type(type);
  if (known.size() >= kMaxKnown) return kind;
  Py_INCREF(type);
  known.emplace(type, kind);
  return kind;
}

// The Tensor behind an array of kind kOwn.
const PyTensor& own_tensor(nb::handle array, const char* name) {
  require(nb::inst_ready(array), Errc::kInvalidArgument,
          "{}: a Tensor whose __init__ did not run, must be made by Tensor(...)", name);
  return *nb::inst_ptr<PyTensor>(array);
}

}  // namespace

TensorView make_view(void* data, DType dtype, std::span<const std::int64_t> shape,
                     std::span<const std::int64_t> strides, Device device) {
  if (strides.empty()) return TensorView(data, dtype, shape, device);
  const TensorView view = strided_view(data, dtype, shape, strides, device);
  for (int dim = 0; dim < view.num_dims(); ++dim) {
    require(view.stride(dim) >= 0, Errc::kInvalidArgument,
            "tensor: a stride of {} elements, must be at least 0", view.stride(dim));
  }
  return view;
}

PyTensor PyTensor::of(Tensor tensor, Stream stream) {
  auto owner = std::make_shared<Tensor>(std::move(tensor));
  const TensorView view = owner->view();
  return {view, std::move(owner), stream};
}

std::shared_ptr<const void> keep(nb::object object) {
  return {object.release().ptr(), [](void* kept) {
            if (!Py_IsInitialized() || !may_take_gil()) return;
            const WithGil held;
            Py_DECREF(static_cast<PyObject*>(kept));
          }};
}

std::shared_ptr<const void> keep_all(std::vector<nb::object> objects) {
  nb::list list;
  for (nb::object& object : objects) list.append(std::move(object));
  return keep(std::move(list));
}

std::vector<std::int64_t> whole_numbers(nb::handle values, const char* name) {
  return nb::cast<std::vector<std::int64_t>>(
      nb::module_::import_("switchyard.arrays").attr("whole_numbers")(values, name));
}

Device device_from(nb::handle value) {
  if (!value.is_valid() || value.is_none()) return Device::cpu();
  Device device;
  if (nb::try_cast(value, device)) return device;
  if (is_array(value)) fail_type("device", value, "a device or its name");
  const std::string text = text_of(value);
  constexpr std::string_view kCuda = "cuda:";
  if (text == "cpu") return device;
  if (text == "cuda") return Device::cuda(0);
  const std::string digits = text.starts_with(kCuda) ? text.substr(kCuda.size()) : "";
  require(
      !digits.empty() && digits.size() < 5 && digits.find_first_not_of("0123456789") == digits.npos,
      Errc::kInvalidArgument, "device: \"{}\", must be \"cpu\" or for example \"cuda:0\"", text);
  return Device::cuda(std::stoi(digits));
}

Arrays::Found Arrays::find(nb::handle array, const char* name) {
  try {
    switch (kind_of(array)) {
      case Kind::kOwn: {
        const PyTensor& tensor = own_tensor(array, name);
        prefer(tensor.stream);
        if (tensor.torch != nullptr) torch_.push_back({nb::borrow(tensor.torch), tensor.stream});
        return {tensor.view};
      }
      case Kind::kNumpy: return from_numpy(array);
      case Kind::kTorch: return from_torch(array, name);
      case Kind::kDLPack: return from_dlpack(array);
      case Kind::kOther: break;
    }
  } catch (const Error& error) {
    const std::string_view text = error.what();
    if (text.starts_with(name)) throw;
    fail(error.code(), "{}: {}", name, text);
  }
  fail_type(name, array, "a switchyard.Tensor, a numpy array, a torch tensor or have __dlpack__");
}

TensorView Arrays::in(nb::handle array, const char* name) {
  if (!array.is_valid() || array.is_none()) return {};
  held_.push_back(nb::borrow(array));
  const TensorView view = find(array, name).view;
  if (!device_) device_ = view.device();
  return view;
}

TensorView Arrays::out(nb::handle array, const char* name) {
  if (!array.is_valid() || array.is_none()) return {};
  held_.push_back(nb::borrow(array));
  const Found found = find(array, name);
  require(!found.is_read_only, Errc::kInvalidArgument,
          "{}: the array is read-only, must be writable", name);
  require(!found.is_resolved, Errc::kInvalidArgument,
          "{}: its negative bit is set, so its memory has the other sign; call resolve_neg()",
          name);
  if (!device_) device_ = found.view.device();
  return found.view;
}

void Arrays::prefer(nb::handle array) {
  const Kind kind = kind_of(array);
  if (kind == Kind::kTorch && device_of_torch(array).is_cuda()) {
    has_torch_ = true;
    torch_.push_back({nb::borrow(array)});
  }
  if (kind == Kind::kOwn) prefer(own_tensor(array, "stream").stream);
}

void Arrays::prefer(Stream filling) {
  if (filling.device().is_cuda() && !filling_) filling_ = filling;
}

void Arrays::prefer_torch() {
  const auto modules = nb::borrow<nb::dict>(nb::module_::import_("sys").attr("modules"));
  has_torch_ = has_torch_ || (modules.contains("torch._C") &&
                              nb::hasattr(modules["torch._C"], "_cuda_getCurrentRawStream"));
}

Stream Arrays::stream_so_far(Device device) const {
  if (names_stream()) {
    return stream_from(stream_argument_, device);
  }
  if (device.is_cpu()) return Stream::host();
  if (has_torch_) return torch_stream(device);
  if (filling_ && filling_->device() == device) return *filling_;
  return Stream::default_of(device);
}

Stream Arrays::stream(Device device) {
  const Stream stream = stream_so_far(device);
  if (imported_) order(*std::exchange(imported_, std::nullopt), stream);
  used_ = stream;
  return stream;
}

// Without `stream=`, a call with torch tensors works in torch's current stream.
Arrays::~Arrays() {
  if (torch_.empty() || !used_) return;
  try {
    std::optional<Stream> current;
    for (const TorchMemory& memory : torch_) {
      if (!memory.pool && !names_stream()) continue;
      if (!memory.pool && !current) current = torch_stream(used_->device());
      const Stream pool = memory.pool ? *memory.pool : *current;
      if (pool != *used_) record_stream(memory.tensor, *used_);
    }
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("switchyard: record_stream");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "switchyard: record_stream: %s\n", error.what());
  }
}

PyTensor Arrays::allocate(DType dtype, std::span<const std::int64_t> shape, Device device) {
  if (device.is_cpu() || torch_.empty())
    return PyTensor::of(Tensor(dtype, shape, device), stream(device));
  const std::size_t bytes = TensorView(nullptr, dtype, shape, device).num_bytes();
  const Stream filling = stream(device);
  nb::object memory = empty_torch(bytes, filling);
  PyObject* tensor = memory.ptr();
  void* pointer = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(memory.attr("data_ptr")()));
  return {TensorView(pointer, dtype, shape, device), keep(std::move(memory)), filling, tensor};
}

}  // namespace switchyard::python
