// SPDX-License-Identifier: Apache-2.0
//
// device_copy.h: copies host values to GPU memory.
#pragma once

#include <algorithm>
#include <cuda_runtime_api.h>
#include <vector>

#include "cuda/base/check.h"
#include "cuda/base/memory.h"

namespace switchyard::test {

/// The buffer always has memory: with no values it has room for one.
template <typename T>
cuda::DeviceBuffer device_copy(const std::vector<T>& values) {
  cuda::DeviceBuffer buffer(std::max<std::size_t>(1, values.size()) * sizeof(T));
  cuda::check_cuda(
      cudaMemcpy(buffer.data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
      "copy");
  return buffer;
}

}  // namespace switchyard::test
