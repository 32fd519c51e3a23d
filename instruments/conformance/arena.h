// SPDX-License-Identifier: Apache-2.0
//
// arena.h: tensors of a case on the device that computes. Cases have theirs in host memory: on CPUs
// they are used as they are, for a GPU they are copied there, and what is written is copied back.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "switchyard/group.h"
#include "switchyard/tensor.h"

namespace switchyard::conformance {

/// Of a case on "cpu" or "cuda": GPU 0, or the default one of a rank. Errors: kNotAvailable (no
/// GPU).
Device device_of(const std::string& name);
Device device_of(const std::string& name, const Group& group);

/// Bytes from the first to behind the last element of a view, with what lies between.
std::size_t span_bytes(const TensorView& view);

/// What a case of functions of tensors takes, at most.
inline constexpr std::size_t kCaseBytes = std::size_t{768} << 20;

/// On a GPU all memory is taken at once: ranks that share a GPU must not allocate while the kernel
/// of a peer waits for them. Copies are made in the arena's stream and waited for.
class Arena {
 public:
  Arena(Device device, std::size_t bytes);

  Device device() const { return stream_.device(); }
  Stream stream() const { return stream_; }

  /// The tensor on the device, with the same strides; what lies between the elements is copied too.
  /// Absent stays absent. Errors: kOutOfMemory beyond the bytes of the arena.
  TensorView in(const TensorView& host);
  /// The same for a tensor that the call writes: finish() copies it back.
  TensorView out(const TensorView& host);
  /// Memory of the device; none on CPUs, where no function needs any.
  std::span<std::byte> scratch(std::size_t bytes);
  /// [1] i32 where functions count errors of their input; absent on CPUs, where they throw.
  TensorView errors();

  /// All bytes of a view of this device, into as many of the host. Waits.
  void copy_out(const TensorView& view, void* host) const;
  /// Waits for the stream and copies back what was written. Throws a Difference when an error was
  /// counted.
  void finish();
  /// Everything that was given out is free again.
  void clear() { used_ = 0; }

 private:
  std::byte* allocate(std::size_t bytes);

  std::shared_ptr<CUstream_st> own_stream_;  // on GPUs
  Stream stream_;
  Tensor memory_;
  std::size_t used_ = 0;
  std::int32_t num_errors_ = 0;
  std::vector<std::pair<TensorView, TensorView>> written_;  ///< on the device, on the host
};

}  // namespace switchyard::conformance
