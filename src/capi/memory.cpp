// SPDX-License-Identifier: Apache-2.0

#include "capi/memory.h"

#include <algorithm>
#include <memory>

#include "capi/objects.h"
#include "capi/sized.h"
#include "core/fail.h"

namespace switchyard::capi {
namespace {

constexpr std::size_t kAlignment = 128;  // as Tensor's own memory

}  // namespace

Memory::Memory(const sy_allocator* allocator, Device device, void* stream)
    : allocator_(read_sized(allocator, "allocator")), device_(device), stream_(stream) {
  check(allocator == nullptr || (allocator_.alloc != nullptr && allocator_.free != nullptr),
        "allocator->alloc or allocator->free is NULL, must be functions");
}

Tensor Memory::make(DType dtype, std::span<const std::int64_t> shape) const {
  if (allocator_.alloc == nullptr) return Tensor(dtype, shape, device_);
  const std::size_t bytes =
      std::max<std::size_t>(1, TensorView(nullptr, dtype, shape, device_).num_bytes());
  const sy_device device = to_dlpack(device_);
  void* data = allocator_.alloc(allocator_.user, bytes, kAlignment, device, stream_);
  require(data != nullptr, Errc::kOutOfMemory,
          "{}: the caller's allocator has no {} bytes on {}; use fewer tokens, or a larger pool",
          current_function(), bytes, name_of(device_));
  const auto free = [allocator = allocator_, bytes, device, stream = stream_](std::byte* memory) {
    allocator.free(allocator.user, memory, bytes, device, stream);
  };
  std::shared_ptr<std::byte> owner(static_cast<std::byte*>(data), free);
  check(reinterpret_cast<std::uintptr_t>(data) % kAlignment == 0,
        "the caller's allocator gave {}, must be aligned to {} bytes", fmt::ptr(data), kAlignment);
  return {std::move(owner), TensorView(data, dtype, shape, device_)};
}

std::span<std::byte> workspace_of(void* workspace, std::size_t bytes) {
  check(workspace != nullptr || bytes == 0, "workspace is NULL, must be {} bytes", bytes);
  return {static_cast<std::byte*>(workspace), bytes};
}

}  // namespace switchyard::capi

using namespace switchyard;
using namespace switchyard::capi;

extern "C" {

sy_status sy_array_create(sy_dtype dtype, int32_t ndim, const int64_t* shape, sy_device device,
                          const sy_allocator* allocator, void* stream, sy_array** array) {
  return call(__func__, [&] {
    sy_array*& result = out(array, "array");
    check(ndim >= 0 && ndim <= kMaxDims && (ndim == 0 || shape != nullptr),
          "ndim is {}, must be from 0 to {} with as many sizes in shape", ndim, kMaxDims);
    const Device where = device_of(device, "device");
    stream_of(stream, where);
    result = give<sy_array>(Memory(allocator, where, stream)
                                .make(dtype_from_dlpack(dtype, "dtype"),
                                      std::span(shape, static_cast<std::size_t>(ndim))));
  });
}

sy_status sy_array_copy_of(const sy_tensor* from, sy_device device, void* stream,
                           sy_array** array) {
  return call(__func__, [&] {
    sy_array*& result = out(array, "array");
    const TensorView view = view_of(from, "from");
    const Device to = device_of(device, "device");
    const Device worker = view.device().is_cuda() ? view.device() : to;
    result = give<sy_array>(copy_to(view, to, stream_of(stream, worker)));
  });
}

sy_status sy_array_tensor(sy_array* array, sy_tensor* tensor) {
  return call(__func__, [&] { out(tensor, "tensor") = use(array)->held.get(); });
}

sy_status sy_array_destroy(sy_array* array) { return destroy(__func__, array); }

}  // extern "C"
