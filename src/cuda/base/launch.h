// SPDX-License-Identifier: Apache-2.0
//
// launch.h: launches kernels, on request before the preceding kernel in the stream has completed
// (programmatic dependent launch) and, after allow_shared_memory, with more than 48 KB of shared
// memory.
#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>

#include "cuda/base/check.h"

namespace switchyard::cuda {

struct LaunchShape {
  int ctas = 1;
  int threads = 1;
  std::size_t shared_bytes = 0;
  bool programmatic = false;
  cudaStream_t stream = nullptr;
  int parts = 1;  ///< y dimension of the grid
};

/// This function and the next two describe the current GPU.
inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  check_cuda(cudaDeviceGetAttribute(&value, attribute, device), "cudaDeviceGetAttribute");
  return value;
}
inline int num_multiprocessors() { return device_attribute(cudaDevAttrMultiProcessorCount); }
/// Whether it supports programmatic dependent launch.
inline bool has_programmatic_launch() {
  return device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9;
}

/// Lets later launches of `kernel` on the current GPU use `shared_bytes` of dynamic shared memory,
/// also beyond the default limit of 48 KB. One call is enough. It raises the limit to all that the
/// GPU can give a CTA, so the limit never depends on who asked last.
template <typename... Params>
void allow_shared_memory(void (*kernel)(Params...), std::size_t shared_bytes, const char* name) {
  const auto* function = reinterpret_cast<const void*>(kernel);
  cudaFuncAttributes attributes{};
  check_cuda(cudaFuncGetAttributes(&attributes, function), name);
  if (static_cast<int>(shared_bytes) <= attributes.maxDynamicSharedSizeBytes) return;
  const int most = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  check_cuda(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  most - static_cast<int>(attributes.sharedSizeBytes)),
             name);
}

template <typename... Params, typename... Args>
void launch_kernel(void (*kernel)(Params...), const LaunchShape& shape, const char* name,
                   const Args&... args) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.ctas), static_cast<unsigned>(shape.parts));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = shape.stream;
  config.attrs = &attribute;
  config.numAttrs = shape.programmatic ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, args...), name);
}

}  // namespace switchyard::cuda
