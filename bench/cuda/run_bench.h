// SPDX-License-Identifier: Apache-2.0
//
// run_bench.h: the common part of main in GPU benchmarks.
#pragma once

#include <cstdio>
#include <cuda_runtime_api.h>
#include <exception>

#include "switchyard/device.h"

namespace switchyard {

/// Where benchmarks of one GPU run.
inline constexpr Device kGpu = Device::cuda(0);

/// Returns the exit code: 77 on a machine without a GPU, which means skipped; 1 after an error.
template <typename Body>
int run_bench(const char* name, const Body& body) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    std::fprintf(stderr, "%s: no CUDA device on this machine; see switchyard doctor\n", name);
    return 77;
  }
  try {
    body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name, error.what());
    return 1;
  }
  return 0;
}

}  // namespace switchyard
