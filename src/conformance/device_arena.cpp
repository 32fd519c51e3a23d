// SPDX-License-Identifier: Apache-2.0

#include "conformance/device_arena.h"

#include <array>

#include "core/bytes.h"
#include "core/fail.h"

namespace switchyard::conformance {
namespace {

constexpr std::size_t kAlignment = 256;

// The same shape and strides elsewhere.
TensorView at(std::byte* data, const TensorView& like) {
  std::array<std::int64_t, kMaxDims> shape{};
  for (int d = 0; d < like.num_dims(); ++d) shape[static_cast<std::size_t>(d)] = like.shape(d);
  if (like.is_contiguous()) {
    return TensorView(
        data, like.dtype(),
        std::span<const std::int64_t>(shape.data(), static_cast<std::size_t>(like.num_dims())));
  }
  switch (like.num_dims()) {
    case 1: return TensorView(data, like.dtype(), {shape[0]}, {like.stride(0)});
    case 2:
      return TensorView(data, like.dtype(), {shape[0], shape[1]}, {like.stride(0), like.stride(1)});
    case 3:
      return TensorView(data, like.dtype(), {shape[0], shape[1], shape[2]},
                        {like.stride(0), like.stride(1), like.stride(2)});
    default: break;
  }
  fail(Errc::kInvalidArgument, "device arena: {} has strides, must have at most 3 dimensions",
       like.describe());
}

}  // namespace

std::size_t span_bytes(const TensorView& view) {
  if (view.num_elements() == 0) return 0;
  std::int64_t last = 0;
  for (int d = 0; d < view.num_dims(); ++d) last += (view.shape(d) - 1) * view.stride(d);
  return static_cast<std::size_t>(((last + 1) * bits_of(view.dtype()) + 7) / 8);
}

DeviceArena::DeviceArena(DeviceQueue& queue, std::size_t bytes)
    : queue_(queue), bytes_(bytes), memory_(queue.allocate(bytes)) {}

std::byte* DeviceArena::allocate(std::size_t bytes) {
  const std::size_t first = used_;
  used_ = checked_add(used_, align_up(bytes + 1, kAlignment));
  require(used_ <= bytes_, Errc::kOutOfMemory, "device arena: {} bytes are wanted, there are {}",
          used_, bytes_);
  return memory_.get() + first;
}

TensorView DeviceArena::up(const TensorView& host) {
  if (!host.has_value()) return {};
  const std::size_t bytes = span_bytes(host);
  std::byte* to = allocate(bytes);
  if (bytes > 0) queue_.copy(to, host.data(), bytes);
  return at(to, host);
}

void DeviceArena::down(const TensorView& device, void* host) {
  const std::size_t bytes = span_bytes(device);
  if (bytes > 0) queue_.copy(host, device.data(), bytes);
}

}  // namespace switchyard::conformance
