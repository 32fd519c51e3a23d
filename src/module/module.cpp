// SPDX-License-Identifier: Apache-2.0
//
// The table of the CUDA module.

#include "switchyard/export.h"
#include "switchyard/version.h"

#include "cuda/base/check.h"
#include "cuda/experts/expert_blas.h"
#include "cuda/experts/expert_kernels.h"
#include "cuda/experts/layer_rows.h"
#include "cuda/permute/permute.h"
#include "cuda/quantize/quantize.h"
#include "device/cuda_module.h"
#include "exchange/push/push_exchange.h"
#include "module/cuda_meter.h"
#include "module/cuda_queue.h"
#include "module/describe_devices.h"

namespace switchyard {
namespace {

int device_count() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

std::unique_ptr<DeviceExchangeBackend> make_exchange(const Group& group,
                                                     const ExchangeConfig& config,
                                                     const DeviceExchangeOptions& options) {
  return std::make_unique<PushExchange>(group, config, options);
}

}  // namespace

extern "C" SWITCHYARD_API const CudaModule* switchyard_cuda_module() {
  static const CudaModule module{
      .version = version(),
      .device_count = device_count,
      .make_queue = make_cuda_queue,
      .make_exchange = make_exchange,
      .describe_devices = describe_devices,
      .quantize = cuda::launch_quantize,
      .dequantize = cuda::launch_dequantize,
      .exact_product = cuda::launch_exact_product,
      .activate_rows = cuda::launch_activation,
      .fill_bias = cuda::launch_fill_bias,
      .make_blas = cuda::make_cublas,
      .map_choices = cuda::map_choices,
      .scatter_rows = cuda::scatter_rows,
      .copy_rows = cuda::copy_rows,
      .reduce_rows = cuda::reduce_rows,
      .count_experts = cuda::count_experts,
      .map_ids = cuda::map_ids,
      .round_up_and_sum = cuda::round_up_and_sum,
      .rename_ids = cuda::rename_ids,
      .mark_rows = cuda::mark_rows,
      .weigh_rows = cuda::weigh_rows,
      .gate_weights = cuda::gate_weights,
      .make_meter = make_cuda_meter,
  };
  return &module;
}

}  // namespace switchyard
