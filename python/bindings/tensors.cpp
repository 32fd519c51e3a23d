// SPDX-License-Identifier: Apache-2.0
//
// How each kind of array shows its memory: numpy by __array_interface__, which works for the types
// of ml_dtypes too; torch by data_ptr(), which works for every dtype of every version; all others
// by DLPack. What kind an array is depends on its type alone and is looked up once per type.

#include "tensors.h"

#include <array>
#include <cstdio>
#include <exception>
#include <map>
#include <string>
#include <utility>

#include "core/fail.h"
#include "core/strided_view.h"
#include "dlpack.h"
#include "dtypes.h"
#include "gil.h"
#include "streams.h"

namespace switchyard::python {
namespace {

enum class Kind { kOwn, kNumpy, kTorch, kDLPack, kOther };

struct Sizes {
  std::array<std::int64_t, kMaxDims> values{};
  std::size_t count = 0;

  std::span<const std::int64_t> span() const { return {values.data(), count}; }
};

Sizes sizes_from(nb::handle sequence) {
  Sizes sizes;
  const std::size_t count = nb::len(sequence);
  require(count <= kMaxDims, Errc::kInvalidArgument, "tensor: {} dimensions, want at most {}",
          count, kMaxDims);
  for (const nb::handle size : nb::borrow<nb::sequence>(sequence)) {
    sizes.values[sizes.count++] = nb::cast<std::int64_t>(size);
  }
  return sizes;
}

bool is_class(nb::handle type, const char* module, const char* name) {
  return text_of(type.attr("__module__")) == module && text_of(type.attr("__name__")) == name;
}

Kind kind_of_type(nb::handle type) {
  if (type.is(nb::type<PyTensor>())) return Kind::kOwn;
  for (const nb::handle base : nb::borrow<nb::tuple>(type.attr("__mro__"))) {
    if (is_class(base, "numpy", "ndarray")) return Kind::kNumpy;
    if (is_class(base, "torch", "Tensor")) return Kind::kTorch;
  }
  return nb::hasattr(type, "__dlpack__") ? Kind::kDLPack : Kind::kOther;
}

// With the GIL. Types are few; a reference keeps the address from being another type's.
Kind kind_of(nb::handle array) {
  static auto& known = *new std::map<PyObject*, Kind>;
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(array.ptr()));
  const auto found = known.find(type);
  if (found != known.end()) return found->second;
  const Kind kind = kind_of_type(type);
  Py_INCREF(type);
  known.emplace(type, kind);
  return kind;
}

Device device_of_torch(nb::handle array) {
  if (!nb::cast<bool>(array.attr("is_cuda"))) {
    const nb::object device = array.attr("device");
    if (text_of(device.attr("type")) != "cpu") {
      fail(Errc::kInvalidArgument, "tensor: it is on {}, must be on cpu or cuda", text_of(device));
    }
    return Device::cpu();
  }
  return Device::cuda(nb::cast<std::int32_t>(array.attr("get_device")()));
}

Device device_of_dlpack(std::int32_t type, std::int32_t index) {
  constexpr std::int32_t kPinned = 3;
  if (type == static_cast<std::int32_t>(DeviceType::kCpu) || type == kPinned) return Device::cpu();
  require(type == static_cast<std::int32_t>(DeviceType::kCuda), Errc::kInvalidArgument,
          "tensor: DLPack device type {}, must be 1 (CPU) or 2 (CUDA)", type);
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

std::string text_of(nb::handle object) { return nb::str(object).c_str(); }

TensorView make_view(void* data, DType dtype, std::span<const std::int64_t> shape,
                     std::span<const std::int64_t> strides, Device device) {
  if (strides.empty()) return TensorView(data, dtype, shape, device);
  return strided_view(data, dtype, shape, strides, device);
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

Device device_from(nb::handle value) {
  if (!value.is_valid() || value.is_none()) return Device::cpu();
  Device device;
  if (nb::try_cast(value, device)) return device;
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

Arrays::Found Arrays::from_numpy(nb::handle array) {
  const nb::object interface = array.attr("__array_interface__");
  const DType dtype = dtype_from(array.attr("dtype"));
  const nb::object data = interface["data"];
  const Sizes shape = sizes_from(interface["shape"]);
  const nb::object byte_strides = interface["strides"];
  Sizes strides;
  if (!byte_strides.is_none()) {
    strides = sizes_from(byte_strides);
    const std::int64_t size = bits_of(dtype) / 8;
    for (std::int64_t& stride : std::span(strides.values.data(), strides.count)) {
      require(stride >= 0 && stride % size == 0, Errc::kInvalidArgument,
              "tensor: a stride of {} bytes, must be a multiple of the {} bytes of a {}, from 0",
              stride, size, name_of(dtype));
      stride /= size;
    }
  }
  void* pointer = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(data[0]));
  return {make_view(pointer, dtype, shape.span(), strides.span(), Device::cpu()),
          nb::cast<bool>(data[1])};
}

TensorView Arrays::from_torch(nb::handle array) {
  const Device device = device_of_torch(array);
  if (device.is_cuda()) {
    has_torch_ = true;
    torch_.push_back({nb::borrow(array)});
  }
  const DType dtype = dtype_from(array.attr("dtype"));
  void* pointer = reinterpret_cast<void*>(nb::cast<std::uintptr_t>(array.attr("data_ptr")()));
  const Sizes shape = sizes_from(array.attr("shape"));
  const Sizes strides = sizes_from(array.attr("stride")());
  if (dtype != DType::kE2M1) return make_view(pointer, dtype, shape.span(), strides.span(), device);
  return unpacked(make_view(pointer, DType::kU8, shape.span(), strides.span(), device));
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
            "tensor: DLPack {}.{}, must be of version {}", managed->major, managed->minor,
            dlpack::kMajor);
    tensor = &managed->tensor;
    is_read_only = (managed->flags & dlpack::kReadOnly) != 0;
  } else {
    auto* managed =
        static_cast<dlpack::Managed*>(PyCapsule_GetPointer(capsule.ptr(), dlpack::kName));
    if (managed == nullptr) throw nb::python_error();
    tensor = &managed->tensor;
  }
  require(tensor->num_dims >= 0 && tensor->num_dims <= kMaxDims, Errc::kInvalidArgument,
          "tensor: {} dimensions, want at most {}", tensor->num_dims, kMaxDims);
  const auto num_dims = static_cast<std::size_t>(tensor->num_dims);
  std::span<const std::int64_t> strides;
  if (tensor->strides != nullptr) strides = {tensor->strides, num_dims};
  return {make_view(static_cast<std::byte*>(tensor->data) + tensor->byte_offset,
                    dtype_from_dlpack(tensor->code, tensor->bits, tensor->lanes),
                    {tensor->shape, num_dims}, strides, device),
          is_read_only};
}

Arrays::Found Arrays::find(nb::handle array, const char* name) {
  switch (kind_of(array)) {
    case Kind::kOwn: {
      const PyTensor& tensor = *nb::inst_ptr<PyTensor>(array);
      prefer(tensor.stream);
      if (tensor.torch != nullptr) torch_.push_back({nb::borrow(tensor.torch), tensor.stream});
      return {tensor.view};
    }
    case Kind::kNumpy: return from_numpy(array);
    case Kind::kTorch: return {from_torch(array)};
    case Kind::kDLPack: return from_dlpack(array);
    case Kind::kOther: break;
  }
  fail(Errc::kInvalidArgument,
       "{}: a {}, must be a switchyard.Tensor, a numpy array, a torch tensor or have __dlpack__",
       name, nb::str(array.type().attr("__name__")).c_str());
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
  if (!device_) device_ = found.view.device();
  return found.view;
}

void Arrays::prefer(nb::handle array) {
  const Kind kind = kind_of(array);
  if (kind == Kind::kTorch && device_of_torch(array).is_cuda()) {
    has_torch_ = true;
    torch_.push_back({nb::borrow(array)});
  }
  if (kind == Kind::kOwn) prefer(nb::inst_ptr<PyTensor>(array)->stream);
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
