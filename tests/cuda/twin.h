// SPDX-License-Identifier: Apache-2.0
//
// twin.h: memory that exists twice, with guard bytes, to compare a CPU result with a GPU result.
#pragma once

#include <cstddef>
#include <cstring>
#include <cuda_runtime_api.h>
#include <vector>

#include <gtest/gtest.h>

#include "cuda/base/check.h"
#include "cuda/base/memory.h"

namespace switchyard::test {

/// The same bytes on both processors. They start as 0xAB, like the guards around them.
class Twin {
 public:
  /// `misalignment` is the distance from a 16-byte aligned address.
  explicit Twin(std::size_t num_bytes, std::size_t misalignment = 0)
      : start_(kGuard + misalignment),
        bytes_(num_bytes + 2 * kGuard + misalignment, std::byte{0xAB}),
        device_(bytes_.size()) {
    upload();
  }

  std::byte* host() { return bytes_.data() + start_; }
  std::byte* device() { return device_.data() + start_; }
  void upload() {
    check_cuda(cudaMemcpy(device_.data(), bytes_.data(), bytes_.size(), cudaMemcpyHostToDevice),
               "upload");
  }

  /// Compares guards as well. Reports the first difference relative to the start of the memory.
  void expect_equal(const char* what) const {
    std::vector<std::byte> got(bytes_.size());
    check_cuda(cudaMemcpy(got.data(), device_.data(), got.size(), cudaMemcpyDeviceToHost),
               "download");
    if (std::memcmp(got.data(), bytes_.data(), got.size()) == 0) return;
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
  DeviceBuffer device_;
};

}  // namespace switchyard::test
