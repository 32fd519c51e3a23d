// SPDX-License-Identifier: Apache-2.0

#include "conformance/arena.h"

#include <array>
#include <string>

#include "conformance/compare.h"
#include "core/bytes.h"
#include "core/fail.h"
#include "device/cuda_module.h"

namespace switchyard::conformance {
namespace {

constexpr std::size_t kAlignment = 256;

// The same shape and strides elsewhere.
TensorView at(std::byte* data, const TensorView& like, Device device) {
  std::array<std::int64_t, kMaxDims> shape{};
  for (int d = 0; d < like.num_dims(); ++d) shape[static_cast<std::size_t>(d)] = like.shape(d);
  const std::span<const std::int64_t> extents(shape.data(),
                                              static_cast<std::size_t>(like.num_dims()));
  if (like.is_contiguous()) return TensorView(data, like.dtype(), extents, device);
  switch (like.num_dims()) {
    case 1: return TensorView(data, like.dtype(), {shape[0]}, {like.stride(0)}, device);
    case 2:
      return TensorView(data, like.dtype(), {shape[0], shape[1]}, {like.stride(0), like.stride(1)},
                        device);
    case 3:
      return TensorView(data, like.dtype(), {shape[0], shape[1], shape[2]},
                        {like.stride(0), like.stride(1), like.stride(2)}, device);
    default: break;
  }
  fail(Errc::kInvalidArgument, "arena: {} has strides, must have at most 3 dimensions",
       like.describe());
}

}  // namespace

Device device_of(const std::string& name) {
  return name == "cpu" ? Device::cpu() : Device::cuda(0);
}

Device device_of(const std::string& name, const Group& group) {
  return name == "cpu" ? Device::cpu() : default_gpu(group);
}

std::size_t span_bytes(const TensorView& view) {
  if (view.num_elements() == 0) return 0;
  std::int64_t last = 0;
  for (int d = 0; d < view.num_dims(); ++d) last += (view.shape(d) - 1) * view.stride(d);
  return static_cast<std::size_t>(((last + 1) * bits_of(view.dtype()) + 7) / 8);
}

Arena::Arena(Device device, std::size_t bytes) : stream_(Stream::default_of(device)) {
  if (device.is_cpu()) return;
  memory_ = Tensor(DType::kU8, {static_cast<std::int64_t>(bytes)}, device);
  own_stream_ = cuda_module().make_stream(device);
  stream_ = Stream::cuda(own_stream_.get(), device.index);
}

std::byte* Arena::allocate(std::size_t bytes) {
  const std::size_t size = memory_.view().num_bytes();
  const std::size_t first = used_;
  used_ = checked_add(used_, align_up(bytes + 1, kAlignment));
  require(used_ <= size, Errc::kOutOfMemory, "arena: {} bytes are wanted, there are {}", used_,
          size);
  return memory_.as<std::byte>() + first;
}

TensorView Arena::in(const TensorView& host) {
  if (device().is_cpu() || !host.has_value()) return host;
  const std::size_t bytes = span_bytes(host);
  std::byte* to = allocate(bytes);
  if (bytes > 0) {
    cuda_module().copy(to, host.data(), bytes, stream_);
    cuda_module().synchronize(stream_);
  }
  return at(to, host, device());
}

TensorView Arena::out(const TensorView& host) {
  const TensorView there = in(host);
  if (device().is_cuda() && host.has_value()) written_.emplace_back(there, host);
  return there;
}

std::span<std::byte> Arena::scratch(std::size_t bytes) {
  if (device().is_cpu()) return {};
  return {allocate(bytes), bytes};
}

TensorView Arena::errors() {
  return device().is_cpu() ? TensorView() : out(TensorView::of(&num_errors_, {1}));
}

void Arena::copy_out(const TensorView& view, void* host) const {
  const std::size_t bytes = span_bytes(view);
  if (bytes == 0) return;
  cuda_module().copy(host, view.data(), bytes, stream_);
  cuda_module().synchronize(stream_);
}

void Arena::finish() {
  if (device().is_cpu()) return;
  cuda_module().synchronize(stream_);
  for (const auto& [there, host] : std::exchange(written_, {})) copy_out(there, host.data());
  expect(num_errors_ == 0, "{} errors are counted, expected none", num_errors_);
}

}  // namespace switchyard::conformance
