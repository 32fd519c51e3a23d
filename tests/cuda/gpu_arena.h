// SPDX-License-Identifier: Apache-2.0
//
// gpu_arena.h: the GPU memory and the stream of one rank of a test, allocated up front. Ranks that
// share a GPU must not allocate memory while kernels of their peers wait: the runtime would wait
// for those kernels, and they wait for this rank.
#pragma once

#include <initializer_list>
#include <new>
#include <span>
#include <vector>

#include "switchyard/tensor.h"

#include "cuda/base/check.h"
#include "gpu.h"

namespace switchyard::test {

/// The same dtype, shape and strides over other memory.
inline TensorView moved_to(const TensorView& view, const void* data, Device device) {
  const auto shape = [&](int d) { return view.shape(d); };
  const auto stride = [&](int d) { return view.stride(d); };
  if (!view.has_value() || view.is_contiguous()) {
    std::vector<std::int64_t> all;
    for (int d = 0; d < view.num_dims(); ++d) all.push_back(shape(d));
    return view.has_value() ? TensorView(data, view.dtype(), all, device) : TensorView();
  }
  switch (view.num_dims()) {
    case 1: return TensorView(data, view.dtype(), {shape(0)}, {stride(0)}, device);
    case 2:
      return TensorView(data, view.dtype(), {shape(0), shape(1)}, {stride(0), stride(1)}, device);
    case 3:
      return TensorView(data, view.dtype(), {shape(0), shape(1), shape(2)},
                        {stride(0), stride(1), stride(2)}, device);
    default: break;
  }
  ADD_FAILURE() << view.describe() << " has strides, must have at most 3 dimensions";
  return {};
}

/// Bytes from the first element to the last, gaps between strided rows included.
inline std::size_t span_bytes(const TensorView& view) {
  if (!view.has_value() || view.num_elements() == 0) return 0;
  std::int64_t last = 0;
  for (int d = 0; d < view.num_dims(); ++d) last += (view.shape(d) - 1) * view.stride(d);
  return static_cast<std::size_t>(((last + 1) * bits_of(view.dtype()) + 7) / 8);
}

/// The memory of a view as bytes.
inline TensorView bytes_view(const TensorView& view) {
  return TensorView(view.data(), DType::kU8, {static_cast<std::int64_t>(span_bytes(view))},
                    view.device());
}

class GpuArena {
 public:
  GpuArena(Device device, std::size_t bytes)
      : memory_(DType::kU8, {static_cast<std::int64_t>(bytes)}, device),
        stream_(make_stream(device)) {}

  Device device() const { return memory_.device(); }
  Stream stream() const { return Stream::cuda(stream_.get(), device().index); }
  void wait() const { cuda::check_cuda(cudaStreamSynchronize(stream_.get()), "wait"); }

  /// Forgets every tensor.
  void clear() { used_ = 0; }
  /// Holds whatever is there.
  TensorView allocate(DType dtype, std::initializer_list<std::int64_t> shape) {
    const TensorView view(nullptr, dtype, shape, device());
    return moved_to(view, allocate_bytes(view.num_bytes()), device());
  }
  /// The host's tensor on the GPU, strides and the bytes between them too. Absent stays absent.
  TensorView upload(const TensorView& host) {
    if (!host.has_value()) return {};
    const std::size_t bytes = span_bytes(host);
    std::byte* to = allocate_bytes(bytes);
    copy(to, host.data(), bytes);
    return moved_to(host, to, device());
  }
  /// Waits.
  void copy(void* to, const void* from, std::size_t bytes) const {
    if (bytes == 0) return;
    cuda::check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_.get()), "copy");
    wait();
  }

 private:
  std::byte* allocate_bytes(std::size_t bytes) {
    const std::size_t at = used_;
    used_ += (bytes + 511) / 256 * 256;
    if (used_ > memory_.view().num_bytes()) throw std::bad_alloc();
    return memory_.as<std::byte>() + at;
  }

  Tensor memory_;
  cuda::OwnedStream stream_;
  std::size_t used_ = 0;
};

/// A tensor of a GPU on the host, strides and all. Absent stays absent.
class Downloaded {
 public:
  Downloaded() = default;
  Downloaded(const TensorView& gpu, Stream stream) {
    if (!gpu.has_value()) return;
    memory_ = copy_to(bytes_view(gpu), Device::cpu(), stream);
    view_ = moved_to(gpu, memory_.data(), Device::cpu());
  }
  /// In the GPU's default stream: what fills the tensor must have ended.
  explicit Downloaded(const TensorView& gpu) : Downloaded(gpu, Stream::default_of(gpu.device())) {}

  const TensorView& view() const { return view_; }
  std::span<const std::byte> bytes() const {
    return {memory_.as<const std::byte>(), span_bytes(view_)};
  }
  template <typename T>
  const T* as() const {
    return view_.as<const T>();
  }

 private:
  Tensor memory_;
  TensorView view_;
};

}  // namespace switchyard::test
