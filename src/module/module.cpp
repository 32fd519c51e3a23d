// SPDX-License-Identifier: Apache-2.0
//
// The table of the CUDA module.

#include "switchyard/export.h"
#include "switchyard/version.h"

#include "cuda/check.h"
#include "device/cuda_module.h"

namespace switchyard {
namespace {

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

}  // namespace

extern "C" SWITCHYARD_API const CudaModule* switchyard_cuda_module() {
  static const CudaModule module{
      .version = version(),
      .device_count = device_count,
      .map_choices = cuda::map_choices,
      .scatter_rows = cuda::scatter_rows,
      .copy_rows = cuda::copy_rows,
      .reduce_rows = cuda::reduce_rows,
      .count_experts = cuda::count_experts,
      .map_ids = cuda::map_ids,
      .round_up_and_sum = cuda::round_up_and_sum,
  };
  return &module;
}

}  // namespace switchyard
