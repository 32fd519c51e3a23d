// SPDX-License-Identifier: Apache-2.0
//
// The classes Device and Tensor as Python sees them. numpy reads a Tensor of the CPU by
// __array_interface__, all others by DLPack.

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/fail.h"
#include "dlpack.h"
#include "dtypes.h"
#include "errors.h"
#include "gil.h"
#include "streams.h"
#include "tensors.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

namespace switchyard::python {
namespace {

// What a capsule owns: the structure that consumers read, and what it points to.
template <typename Managed>
struct Exported {
  Managed managed{};
  std::shared_ptr<const void> owner;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
};

std::vector<std::int64_t> sizes(const TensorView& view,
                                std::int64_t (TensorView::*size)(int) const noexcept) {
  std::vector<std::int64_t> values;
  for (int dim = 0; dim < view.num_dims(); ++dim) values.push_back((view.*size)(dim));
  return values;
}

template <typename Managed>
nb::object export_capsule(const PyTensor& tensor, const char* name, PyCapsule_Destructor destroy) {
  auto exported = std::make_unique<Exported<Managed>>();
  const TensorView& view = tensor.view;
  exported->owner = tensor.owner;
  exported->shape = sizes(view, &TensorView::shape);
  exported->strides = sizes(view, &TensorView::stride);
  const DLPackType type = dlpack_type(view.dtype());
  exported->managed.tensor = {.data = view.data(),
                              .device_type = static_cast<std::int32_t>(view.device().type),
                              .device_id = view.device().index,
                              .num_dims = view.num_dims(),
                              .code = type.code,
                              .bits = type.bits,
                              .lanes = 1,
                              .shape = exported->shape.data(),
                              .strides = exported->strides.data(),
                              .byte_offset = 0};
  exported->managed.context = exported.get();
  exported->managed.deleter = [](Managed* managed) {
    delete static_cast<Exported<Managed>*>(managed->context);
  };
  PyObject* capsule = PyCapsule_New(&exported->managed, name, destroy);
  if (capsule == nullptr) throw nb::python_error();
  exported.release();
  return nb::steal(capsule);
}

// A consumer renames the capsule and calls the deleter itself.
template <typename Managed>
void destroy_unused(PyObject* capsule, const char* name) {
  if (!PyCapsule_IsValid(capsule, name)) return;
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, name));
  managed->deleter(managed);
}

// What `stream` does from now on waits for what fills the tensor. Whether that is another stream.
bool hand_over(const PyTensor& tensor, Stream stream) {
  if (tensor.stream == stream) return false;
  order(tensor.stream, stream);
  if (tensor.torch != nullptr) record_stream(tensor.torch, stream);
  return true;
}

nb::object to_dlpack(const PyTensor& tensor, nb::handle stream, nb::handle max_version,
                     nb::handle dl_device, nb::handle copy) {
  const Device device = tensor.view.device();
  const bool is_elsewhere =
      !dl_device.is_none() &&
      !nb::object(nb::make_tuple(static_cast<int>(device.type), device.index)).equal(dl_device);
  if (is_elsewhere || (!copy.is_none() && nb::cast<bool>(copy))) {
    throw nb::buffer_error(
        "a switchyard.Tensor is exported where it is and without a copy; say to() first");
  }
  constexpr std::intptr_t kNoOrder = -1;
  constexpr std::intptr_t kLegacyDefault = 1;  // what None means to CUDA arrays
  const std::intptr_t number = stream.is_none() ? kLegacyDefault : nb::cast<std::intptr_t>(stream);
  if (device.is_cuda() && number != kNoOrder) {
    (void)hand_over(tensor, stream_from_dlpack(number, device));
  }
  if (max_version.is_none() || nb::cast<int>(max_version[0]) < 1) {
    return export_capsule<dlpack::Managed>(tensor, dlpack::kName, [](PyObject* capsule) {
      destroy_unused<dlpack::Managed>(capsule, dlpack::kName);
    });
  }
  const nb::object capsule = export_capsule<dlpack::Versioned>(
      tensor, dlpack::kVersionedName,
      [](PyObject* unused) { destroy_unused<dlpack::Versioned>(unused, dlpack::kVersionedName); });
  auto* managed =
      static_cast<dlpack::Versioned*>(PyCapsule_GetPointer(capsule.ptr(), dlpack::kVersionedName));
  managed->major = dlpack::kMajor;
  managed->minor = 0;
  return capsule;
}

// Of fp4 the bytes; numpy has no smaller unit. numpy refuses null, also of an array without
// elements.
nb::dict array_interface(const PyTensor& tensor) {
  const TensorView& view = tensor.view;
  if (!view.device().is_cpu()) throw nb::attribute_error("__array_interface__: not on the CPU");
  const int bits = bits_of(view.dtype());
  require(bits >= 8 || view.is_contiguous(), Errc::kNotSupported,
          "numpy: {} has strides, must be contiguous", view.describe());
  require(bits >= 8 || (view.num_dims() > 0 && view.shape(view.num_dims() - 1) % 2 == 0),
          Errc::kNotSupported, "numpy: {} has half bytes, must have an even last dimension",
          view.describe());
  nb::list shape, strides;
  for (int dim = 0; dim < view.num_dims(); ++dim) {
    const bool is_packed = bits < 8 && dim == view.num_dims() - 1;
    shape.append(view.shape(dim) / (is_packed ? 2 : 1));
    strides.append(view.stride(dim) * bits / 8);
  }
  static std::max_align_t no_elements;
  const void* data = view.num_elements() == 0 ? &no_elements : view.data();
  nb::dict interface;
  interface["version"] = 3;
  interface["typestr"] = numpy_bits(view.dtype());
  interface["data"] = nb::make_tuple(reinterpret_cast<std::uintptr_t>(data), false);
  interface["shape"] = nb::tuple(shape);
  interface["strides"] = bits < 8 ? nb::object(nb::none()) : nb::object(nb::tuple(strides));
  return interface;
}

// The same bytes as another dtype; the last dimension shrinks or grows by the ratio of their sizes.
// Strides stay where the sizes are equal.
PyTensor view_as(const PyTensor& tensor, nb::handle dtype_name) {
  const DType dtype = dtype_from(dtype_name);
  const TensorView& view = tensor.view;
  const int last = view.num_dims() - 1;
  if (bits_of(dtype) == bits_of(view.dtype())) {
    return {make_view(view.data(), dtype, sizes(view, &TensorView::shape),
                      sizes(view, &TensorView::stride), view.device()),
            tensor.owner, tensor.stream, tensor.torch};
  }
  require(view.is_contiguous() && last >= 0, Errc::kInvalidArgument,
          "view: {}, must be contiguous and have a dimension", view.describe());
  std::vector<std::int64_t> shape = sizes(view, &TensorView::shape);
  const std::int64_t row_bits = shape.back() * bits_of(view.dtype());
  require(row_bits % bits_of(dtype) == 0, Errc::kInvalidArgument,
          "view: rows of {} bits, must be a multiple of the {} of {}", row_bits, bits_of(dtype),
          name_of(dtype));
  shape.back() = row_bits / bits_of(dtype);
  return {TensorView(view.data(), dtype, shape, view.device()), tensor.owner, tensor.stream,
          tensor.torch};
}

PyTensor wrap(nb::handle array, nb::handle stream) {
  Arrays arrays(stream);
  const TensorView view = arrays.out(array, "Tensor.wrap");
  return {view, keep_all(arrays.take_held()), arrays.stream(), arrays.torch_memory()};
}

PyTensor from_pointer(std::uintptr_t pointer, nb::handle dtype,
                      const std::vector<std::int64_t>& shape, nb::handle strides, nb::handle device,
                      nb::object owner) {
  const auto steps = strides.is_none() ? std::vector<std::int64_t>()
                                       : nb::cast<std::vector<std::int64_t>>(strides);
  require(shape.size() <= kMaxDims && (steps.empty() || steps.size() == shape.size()),
          Errc::kInvalidArgument,
          "from_pointer: {} sizes and {} strides, must be as many of both, at most {}",
          shape.size(), steps.size(), kMaxDims);
  const Device place = device_from(device);
  return {make_view(reinterpret_cast<void*>(pointer), dtype_from(dtype), shape, steps, place),
          keep(std::move(owner)), Stream::default_of(place)};
}

PyTensor copy(const PyTensor& tensor, nb::handle device, nb::handle stream) {
  const Device to = device_from(device);
  const Device gpu = to.is_cuda() ? to : tensor.view.device();
  const Stream in = stream.is_none()
                        ? (gpu == tensor.view.device() ? tensor.stream : Stream::default_of(gpu))
                        : stream_from(stream, gpu);
  return PyTensor::of(without_gil([&] { return copy_to(tensor.view, to, in); }), in);
}

void bind_device(nb::module_& m) {
  nb::class_<Device>(m, "Device", "A processor with its memory: \"cpu\", or a GPU, \"cuda:0\".")
      .def(
          "__init__", [](Device* self, nb::handle name) { new (self) Device(device_from(name)); },
          nb::arg("name") = "cpu",
          nb::sig("def __init__(self, name: str | Device = 'cpu') -> None"))
      .def_prop_ro("is_cpu", &Device::is_cpu, "Whether it is the CPUs of this host.")
      .def_prop_ro("is_cuda", &Device::is_cuda, "Whether it is a GPU.")
      .def_ro("index", &Device::index, "CUDA's ordinal in this process; 0 for the CPU.")
      .def("__str__", [](const Device& self) { return name_of(self); })
      .def("__repr__", [](const Device& self) { return "Device('" + name_of(self) + "')"; })
      .def("__hash__",
           [](const Device& self) {
             return static_cast<std::int64_t>(self.type) * 65536 + self.index;
           })
      .def(
          "__eq__",
          [](const Device& self, nb::handle other) {
            Device device;
            if (nb::try_cast(other, device)) return self == device;
            return !is_array(other) && text_of(other) == name_of(self);
          },
          nb::arg("other").none(), nb::sig("def __eq__(self, other: object) -> bool"));
  m.def("num_cuda_devices", &num_cuda_devices,
        "GPUs that this process can use; 0 without a driver, a GPU or the CUDA module.");
}

}  // namespace

void bind_tensors(nb::module_& m) {
  bind_device(m);
  nb::class_<PyTensor>(
      m, "Tensor",
      "Memory of the library with dtype, shape, strides (in elements) and device. numpy, torch, "
      "cupy\n"
      "and jax read and write it in place: numpy(), torch(), or from_dlpack of any library.")
      .def(
          "__init__",
          [](PyTensor* self, const std::vector<std::int64_t>& shape, nb::handle dtype,
             nb::handle device) {
            const Device place = device_from(device);
            new (self) PyTensor(
                PyTensor::of(Tensor(dtype_from(dtype), shape, place), Stream::default_of(place)));
          },
          nb::arg("shape"), nb::arg("dtype") = "f32", nb::arg("device") = "cpu",
          nb::sig("def __init__(self, shape: Sequence[int], dtype: DTypeLike = 'f32', device: "
                  "DeviceLike = 'cpu') -> None"),
          "Zero-filled, contiguous.")
      .def_static("wrap", &wrap, nb::arg("array"), nb::arg("stream").none() = nb::none(),
                  nb::sig("def wrap(array: Array, stream: StreamLike = None) -> Tensor"),
                  "The memory of any array, without a copy; the array stays alive with it.")
      .def_static("from_pointer", &from_pointer, nb::arg("pointer"), nb::arg("dtype"),
                  nb::arg("shape"), nb::arg("strides").none() = nb::none(),
                  nb::arg("device") = "cpu", nb::arg("owner").none() = nb::none(),
                  nb::sig("def from_pointer(pointer: int, dtype: DTypeLike, shape: Sequence[int], "
                          "strides: Sequence[int] | None = None, device: DeviceLike = 'cpu', "
                          "owner: object = None) -> Tensor"),
                  "Memory at an address; strides count elements, none: contiguous. `owner` stays "
                  "alive with it.")
      .def_prop_ro(
          "shape",
          [](const PyTensor& self) {
            return nb::tuple(nb::cast(sizes(self.view, &TensorView::shape)));
          },
          nb::sig("def shape(self) -> tuple[int, ...]"), "Sizes of the dimensions.")
      .def_prop_ro(
          "strides",
          [](const PyTensor& self) {
            return nb::tuple(nb::cast(sizes(self.view, &TensorView::stride)));
          },
          nb::sig("def strides(self) -> tuple[int, ...]"),
          "Elements from one index to the next, per dimension.")
      .def_prop_ro(
          "dtype", [](const PyTensor& self) { return name_of(self.view.dtype()); },
          "The library's name, for example \"bf16\" or \"e4m3\".")
      .def_prop_ro(
          "device", [](const PyTensor& self) { return self.view.device(); }, "Where the memory is.")
      .def_prop_ro(
          "ndim", [](const PyTensor& self) { return self.view.num_dims(); },
          "Number of dimensions.")
      .def_prop_ro(
          "nbytes", [](const PyTensor& self) { return self.view.num_bytes(); },
          "Bytes of a contiguous tensor of this shape.")
      .def_prop_ro(
          "is_contiguous", [](const PyTensor& self) { return self.view.is_contiguous(); },
          "Whether it is row-major without gaps.")
      .def_prop_ro(
          "stream", [](const PyTensor& self) { return dlpack_number(self.stream); },
          "The cudaStream_t of the call that fills it, as an int; 0 on the CPU.")
      .def(
          "data_ptr",
          [](const PyTensor& self) { return reinterpret_cast<std::uintptr_t>(self.view.data()); },
          "Address of the first element.")
      .def("view", &view_as, nb::arg("dtype"),
           nb::sig("def view(self, dtype: DTypeLike) -> Tensor"),
           "The same bytes as another dtype; the last dimension follows. u8 viewed as \"e2m1\" has "
           "twice as many elements.")
      .def("to", &copy, nb::arg("device"), nb::arg("stream").none() = nb::none(),
           nb::sig("def to(self, device: DeviceLike, stream: StreamLike = None) -> Tensor"),
           "A contiguous copy on `device`, complete when the call returns.")
      .def(
          "numpy",
          [](nb::handle self) {
            return nb::module_::import_("switchyard.arrays").attr("to_numpy")(self);
          },
          nb::sig("def numpy(self) -> numpy.ndarray"),
          "The same memory as a numpy array, of a dtype of ml_dtypes where numpy has none; e2m1 as "
          "uint8, two per byte.\n"
          "CPU only: say to('cpu') first.")
      .def(
          "torch",
          [](nb::handle self) {
            return nb::module_::import_("switchyard.arrays").attr("to_torch")(self);
          },
          nb::sig("def torch(self) -> torch.Tensor"),
          "The same memory as a torch tensor; e2m1 as uint8, two per byte.")
      .def(
          "_torch_memory",
          [](const PyTensor& self) {
            if (self.torch == nullptr) return nb::object(nb::none());
            (void)hand_over(self, torch_stream(self.view.device()));
            return nb::borrow(self.torch);
          },
          nb::sig("def _torch_memory(self) -> object"),
          "The torch tensor whose memory this is, ready for torch's current stream; or None.")
      .def("__len__",
           [](const PyTensor& self) {
             if (self.view.num_dims() == 0)
               throw nb::type_error("len() of a tensor without dimensions");
             return self.view.shape(0);
           })
      .def("__repr__", [](const PyTensor& self) { return "Tensor(" + self.view.describe() + ")"; })
      .def_prop_ro("__array_interface__", &array_interface)
      .def("__dlpack__", &to_dlpack, nb::kw_only(), nb::arg("stream").none() = nb::none(),
           nb::arg("max_version").none() = nb::none(), nb::arg("dl_device").none() = nb::none(),
           nb::arg("copy").none() = nb::none(),
           nb::sig("def __dlpack__(self, *, stream: int | None = None, max_version: tuple[int, "
                   "int] | None = None, dl_device: tuple[int, int] | None = None, copy: bool | "
                   "None = None) -> object"))
      .def(
          "__dlpack_device__",
          [](const PyTensor& self) {
            return nb::make_tuple(static_cast<int>(self.view.device().type),
                                  self.view.device().index);
          },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"));
}

}  // namespace switchyard::python
