// SPDX-License-Identifier: Apache-2.0
//
// host_and_device.h: memory that exists on the host and on a GPU, with guard bytes, to compare the
// results of both.
#pragma once

#include <cstddef>
#include <cstring>
#include <cuda_runtime_api.h>
#include <vector>

#include <gtest/gtest.h>

#include "switchyard/tensor.h"

#include "cuda/base/check.h"
#include "gpu.h"

namespace switchyard::test {

/// The same bytes on the host and on kGpu. They start as 0xAB, as do the guards around them.
class HostAndDevice {
 public:
  /// `misalignment` moves the memory away from a 16-byte address.
  explicit HostAndDevice(std::size_t num_bytes, std::size_t misalignment = 0)
      : start_(kGuard + misalignment),
        bytes_(num_bytes + 2 * kGuard + misalignment, std::byte{0xAB}),
        gpu_(DType::kU8, {static_cast<std::int64_t>(bytes_.size())}, kGpu) {
    upload();
  }

  std::byte* host() { return bytes_.data() + start_; }
  std::byte* data(Device device) {
    return device.is_cpu() ? host() : gpu_.as<std::byte>() + start_;
  }
  void upload() {
    cuda::check_cuda(cudaMemcpy(gpu_.data(), bytes_.data(), bytes_.size(), cudaMemcpyHostToDevice),
                     "upload");
    // A copy of pageable memory may still be on its way; streams of their own do not wait for it.
    cuda::check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "upload");
  }

  /// Guards included. The first difference counts from the start of the memory.
  void expect_equal(const char* what) const {
    const Tensor download = gpu_.to(Device::cpu());
    const auto* got = download.as<const std::byte>();
    if (std::memcmp(got, bytes_.data(), bytes_.size()) == 0) return;
    std::size_t i = 0;
    while (got[i] == bytes_[i]) ++i;
    ADD_FAILURE() << what << ": byte " << static_cast<std::ptrdiff_t>(i - start_) << " of "
                  << bytes_.size() - kGuard - start_ << " is " << static_cast<int>(got[i])
                  << ", want " << static_cast<int>(bytes_[i]);
  }

 private:
  static constexpr std::size_t kGuard = 256;
  std::size_t start_;
  std::vector<std::byte> bytes_;
  Tensor gpu_;
};

}  // namespace switchyard::test
