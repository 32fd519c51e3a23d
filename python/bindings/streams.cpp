// SPDX-License-Identifier: Apache-2.0

#include "streams.h"

#include <memory>
#include <optional>

#include "core/fail.h"
#include "device/cuda_module.h"
#include "errors.h"

namespace switchyard::python {
namespace {

// cudaStreamLegacy, which torch, cupy and CUDA also call 0.
constexpr std::uintptr_t kLegacy = 1;

Stream cuda_stream(std::uintptr_t handle, Device device) {
  return Stream::cuda(reinterpret_cast<CUstream_st*>(handle == 0 ? kLegacy : handle), device.index);
}

}  // namespace

Stream stream_from(nb::handle value, Device device) {
  require(device.is_cuda(), Errc::kInvalidArgument,
          "stream: the tensors are on {}, which has no streams; pass none", name_of(device));
  nb::object handle = nb::borrow(value);
  if (nb::hasattr(handle, "__cuda_stream__")) {
    handle = nb::borrow<nb::tuple>(handle.attr("__cuda_stream__")())[1];
  } else if (nb::hasattr(handle, "cuda_stream")) {
    handle = handle.attr("cuda_stream");
  } else if (nb::hasattr(handle, "ptr")) {
    handle = handle.attr("ptr");
  }
  std::uintptr_t number = 0;
  if (!nb::try_cast(handle, number))
    fail_type("stream", value, "an int or an object with __cuda_stream__, cuda_stream or ptr");
  return cuda_stream(number, device);
}

Stream torch_stream(Device device) {
  const nb::object number =
      nb::module_::import_("torch._C").attr("_cuda_getCurrentRawStream")(device.index);
  return cuda_stream(nb::cast<std::uintptr_t>(number), device);
}

namespace {

// torch.cuda.Stream; torch calls the legacy default stream 0.
nb::object torch_object(Stream stream) {
  const nb::module_ cuda = nb::module_::import_("torch.cuda");
  const auto handle = reinterpret_cast<std::uintptr_t>(stream.get());
  const std::int32_t index = stream.device().index;
  if (handle == kLegacy) return cuda.attr("default_stream")(index);
  return cuda.attr("ExternalStream")(handle, nb::arg("device") = index);
}

// `with torch.cuda.stream(stream)`.
class TorchStreamGuard {
 public:
  explicit TorchStreamGuard(Stream stream)
      : context_(nb::module_::import_("torch.cuda").attr("stream")(torch_object(stream))) {
    context_.attr("__enter__")();
  }
  ~TorchStreamGuard() {
    try {
      context_.attr("__exit__")(nb::none(), nb::none(), nb::none());
    } catch (nb::python_error& error) {
      error.discard_as_unraisable("switchyard: torch.cuda.stream");
    }
  }
  TorchStreamGuard(const TorchStreamGuard&) = delete;
  TorchStreamGuard& operator=(const TorchStreamGuard&) = delete;

 private:
  nb::object context_;
};

}  // namespace

nb::object empty_torch(std::size_t num_bytes, Stream stream) {
  std::optional<TorchStreamGuard> guard;
  if (stream != torch_stream(stream.device())) guard.emplace(stream);
  const nb::module_ torch = nb::module_::import_("torch");
  return torch.attr("empty")(num_bytes, nb::arg("dtype") = torch.attr("uint8"),
                             nb::arg("device") = nb::str(name_of(stream.device()).c_str()));
}

void record_stream(nb::handle tensor, Stream stream) {
  tensor.attr("record_stream")(torch_object(stream));
}

std::intptr_t dlpack_number(Stream stream) { return reinterpret_cast<std::intptr_t>(stream.get()); }

Stream stream_from_dlpack(std::intptr_t number, Device device) {
  return cuda_stream(static_cast<std::uintptr_t>(number), device);
}

void order(Stream first, Stream second) {
  if (first == second || first.device().is_cpu()) return;
  const std::shared_ptr<void> event = cuda_module().record_event(first);
  cuda_module().wait_event(event.get(), second);
}

}  // namespace switchyard::python
