// SPDX-License-Identifier: Apache-2.0
//
// tensors.h: the one place where arrays of Python become views, and memory of the library becomes
// tensors of Python. Nothing is copied in either direction.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "switchyard/device.h"
#include "switchyard/stream.h"
#include "switchyard/tensor.h"

#include <nanobind/nanobind.h>

namespace switchyard::python {

namespace nb = nanobind;

/// switchyard.Tensor: a view and what keeps its memory alive.
struct PyTensor {
  TensorView view;
  std::shared_ptr<const void> owner{};
  Stream stream = Stream::host();  ///< that fills it
  /// The torch tensor whose GPU memory this is, which `owner` keeps; otherwise null.
  PyObject* torch = nullptr;

  /// Takes over memory of the library.
  static PyTensor of(Tensor tensor, Stream stream);
};

/// A view of any length of shape and strides, which count elements; no strides: contiguous.
TensorView make_view(void* data, DType dtype, std::span<const std::int64_t> shape,
                     std::span<const std::int64_t> strides, Device device);

/// Keeps a Python object alive, on any thread.
std::shared_ptr<const void> keep(nb::object object);
std::shared_ptr<const void> keep_all(std::vector<nb::object> objects);

/// The elements of a list or an array of one dimension that are whole numbers, of any type. Errors:
/// ArgumentTypeError, kInvalidArgument.
std::vector<std::int64_t> whole_numbers(nb::handle values, const char* name);

/// A Device, its name, or an object whose str() is its name (torch.device). None: the CPU.
Device device_from(nb::handle value);

/// Where a torch tensor is. Errors: kInvalidArgument (neither cpu nor cuda).
Device device_of_torch(nb::handle array);

/// The array arguments of one call.
///
/// Accepted are switchyard.Tensor, numpy arrays (ml_dtypes included), torch tensors, and whatever
/// has __dlpack__. All arguments of a call live at least as long as this object. At its end torch
/// learns which of its GPU memory another stream works with than the one it came from
/// (record_stream), so that its allocator gives it to others only behind that work.
class Arrays {
 public:
  /// `stream`: the caller's argument, or None: torch's current stream if any argument is a torch
  /// tensor, else the stream that fills the first switchyard.Tensor, else the thread's default.
  explicit Arrays(nb::handle stream = nb::handle()) : stream_argument_(stream) {}
  ~Arrays();
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;

  /// None gives an absent view. Errors: kInvalidArgument (not an array, a dtype that the library
  /// does not have).
  TensorView in(nb::handle array, const char* name);
  /// The same; a read-only array is refused.
  TensorView out(nb::handle array, const char* name);

  /// Looks only at what decides the stream.
  void prefer(nb::handle array);
  void prefer(Stream filling);
  /// For calls without arrays: torch's current stream, if the program has imported a torch that can
  /// use GPUs.
  void prefer_torch();

  /// On the device of the first array.
  Stream stream() { return stream(device()); }
  Stream stream(Device device);
  Device device() const { return device_.value_or(Device::cpu()); }

  /// New memory on `device`: zero-filled on CPUs. With torch tensors on GPUs it is torch's, from
  /// what its caching allocator has for stream(), so that graphs may be captured, and not filled.
  PyTensor allocate(DType dtype, std::span<const std::int64_t> shape, Device device);
  PyTensor allocate(DType dtype, std::initializer_list<std::int64_t> shape) {
    return allocate(dtype, std::span(shape.begin(), shape.size()), device());
  }

  /// The first torch tensor on a GPU, or null.
  PyObject* torch_memory() const { return torch_.empty() ? nullptr : torch_.front().tensor.ptr(); }

  /// What the views point into, for calls that go on after they return.
  std::vector<nb::object> take_held() { return std::move(held_); }

 private:
  /// A torch tensor on a GPU, and the stream behind whose work torch reuses its memory, unless that
  /// is torch's current one.
  struct TorchMemory {
    nb::object tensor;
    std::optional<Stream> pool{};
  };
  struct Found {
    TensorView view;
    bool is_read_only = false;
    bool is_resolved = false;  ///< a copy of the values, which the memory itself does not hold
  };
  Found find(nb::handle array, const char* name);
  Found from_numpy(nb::handle array);
  Found from_torch(nb::handle array, const char* name);
  Found view_of_torch(nb::handle array, const char* name);
  Found from_dlpack(nb::handle array);
  Stream stream_so_far(Device device) const;
  bool names_stream() const { return stream_argument_.is_valid() && !stream_argument_.is_none(); }

  nb::handle stream_argument_;
  std::vector<nb::object> held_;
  std::optional<Device> device_;
  std::optional<Stream> filling_;   ///< of the first switchyard.Tensor on a GPU
  std::optional<Stream> imported_;  ///< that DLPack imports were ordered in
  std::optional<Stream> used_;      ///< that stream() returned
  std::vector<TorchMemory> torch_;
  bool has_torch_ = false;  ///< a torch tensor on a GPU is an argument itself
};

void bind_tensors(nb::module_& m);

}  // namespace switchyard::python
