// SPDX-License-Identifier: Apache-2.0
//
// stream.h: where work is ordered: on the host, or in a CUDA stream, named without a CUDA header.
//
// A function that takes a Stream works on that stream's device, and all its tensors must lie there.
//   Host: the call returns when the work is done.
//   GPU:  the work is ordered in the stream and the call returns at once. Unless its declaration
//         says otherwise, it allocates nothing and may be captured in a CUDA graph.
// The calling thread's current GPU is the same before and after.
#pragma once

#include <cstddef>

#include "switchyard/device.h"
#include "switchyard/export.h"

struct CUstream_st;  // cudaStream_t is a pointer to it

namespace switchyard {

/// Where work is ordered: the host, or a stream of a GPU. A plain value.
class Stream {
 public:
  /// Calls on it have done their work when they return.
  static constexpr Stream host() noexcept { return Stream(nullptr, Device::cpu()); }

  /// A cudaStream_t of GPU `device_index`.
  static constexpr Stream cuda(CUstream_st* stream, int device_index) noexcept {
    return Stream(stream, Device::cuda(device_index));
  }
  static Stream cuda(std::nullptr_t, int) = delete;  // say default_of(Device::cuda(index))
  static Stream cuda(int, int) = delete;

  /// The host, or the calling thread's default stream of a GPU (cudaStreamPerThread). Unlike the
  /// legacy default stream it does not wait for other threads, because ranks may be threads.
  SWITCHYARD_API static Stream default_of(Device device) noexcept;

  constexpr Device device() const noexcept { return device_; }  ///< the CPUs, or the stream's GPU
  /// The cudaStream_t; null for the host.
  constexpr CUstream_st* get() const noexcept { return stream_; }
  friend constexpr bool operator==(const Stream&, const Stream&) = default;

 private:
  constexpr Stream(CUstream_st* stream, Device device) noexcept
      : stream_(stream), device_(device) {}

  CUstream_st* stream_;
  Device device_;
};

}  // namespace switchyard
