// SPDX-License-Identifier: Apache-2.0
//
// Memory of tensors on either processor, and copies between them.

#include "switchyard/tensor.h"

#include <array>
#include <cstring>

#include "core/aligned_buffer.h"
#include "core/fail.h"
#include "core/format.h"
#include "core/require_device.h"
#include "device/cuda_module.h"

namespace switchyard {
namespace {

std::shared_ptr<std::byte> allocate_on(Device device, std::size_t bytes) {
  if (device.is_cpu()) {
    return {allocate_zeroed(bytes), [bytes](std::byte* data) { release_zeroed(data, bytes); }};
  }
  return cuda_module().allocate(device, bytes);
}

// The GPU that takes part in a copy; the host if none does.
Device copier_of(Device from, Device to) { return from.is_cpu() ? to : from; }

}  // namespace

Tensor::Tensor(DType dtype, std::span<const std::int64_t> shape, Device device) {
  const TensorView probe(nullptr, dtype, shape, device);
  memory_ = allocate_on(device, probe.num_bytes());
  view_ = TensorView(memory_.get(), dtype, shape, device);
}

Tensor Tensor::to(Device device, Stream stream) const { return copy_to(view_, device, stream); }
Tensor Tensor::to(Device device) const { return copy_to(view_, device); }

Tensor copy_to(const TensorView& from, Device device, Stream stream) {
  require(from.has_value() && from.is_contiguous(), Errc::kInvalidArgument,
          "copy_to: from is {}, must be contiguous", from);
  require_device("copy_to", from.device(), {{"from", from}});
  const bool may_copy = stream.device() == from.device() || stream.device() == device;
  require(may_copy && stream.device().type == copier_of(from.device(), device).type,
          Errc::kInvalidArgument, "copy_to: the stream is of {}, must be of {}",
          name_of(stream.device()), name_of(copier_of(from.device(), device)));
  std::array<std::int64_t, kMaxDims> shape{};
  for (int dim = 0; dim < from.num_dims(); ++dim) {
    shape[static_cast<std::size_t>(dim)] = from.shape(dim);
  }
  Tensor to(from.dtype(), std::span(shape.data(), static_cast<std::size_t>(from.num_dims())),
            device);
  if (from.num_bytes() == 0) return to;
  if (stream.device().is_cpu()) {
    std::memcpy(to.data(), from.data(), from.num_bytes());
    return to;
  }
  // A copy of pageable memory that waits for its stream inside the driver can keep other threads
  // from launching what the stream waits for.
  cuda_module().synchronize(stream);
  cuda_module().copy(to.data(), from.data(), from.num_bytes(), stream);
  cuda_module().synchronize(stream);
  return to;
}

Tensor copy_to(const TensorView& from, Device device) {
  return copy_to(from, device, Stream::default_of(copier_of(from.device(), device)));
}

}  // namespace switchyard
