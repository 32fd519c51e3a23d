// SPDX-License-Identifier: Apache-2.0
//
// The CUDA module's table of functions.

#include <tuple>

#include "switchyard/export.h"
#include "switchyard/version.h"

#include "cuda/base/check.h"
#include "cuda/base/memory.h"
#include "cuda/compat/compat_rows.h"
#include "cuda/experts/expert_blas.h"
#include "cuda/experts/expert_kernels.h"
#include "cuda/experts/layer_rows.h"
#include "cuda/permute/permute.h"
#include "cuda/quantize/quantize.h"
#include "device/cuda_module.h"
#include "exchange/backend.h"
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

std::unique_ptr<ExchangeBackend> make_exchange(const Group& group, const ExchangeConfig& config,
                                               const ExchangeOptions& options) {
  return std::make_unique<PushExchange>(group, config, options);
}

// The entry of the table for a launcher: on the stream's GPU, whichever the thread's current one
// is.
template <auto kLaunch>
struct OnGpu;
template <typename... Args, void (*kLaunch)(Args...)>
struct OnGpu<kLaunch> {
  static void call(Args... args) {
    const cuda::DeviceGuard guard(std::get<sizeof...(Args) - 1>(std::tie(args...)).device().index);
    kLaunch(args...);
  }
};
template <auto kLaunch>
constexpr auto on_gpu = &OnGpu<kLaunch>::call;

}  // namespace

extern "C" SWITCHYARD_API const CudaModule* switchyard_cuda_module() {
  static const CudaModule module{
      .version = version(),
      .device_count = device_count,
      .allocate = allocate_zeroed_on_gpu,
      .copy = copy_bytes,
      .fill = fill_bytes,
      .synchronize = synchronize,
      .make_stream = make_stream,
      .record_event = record_event,
      .wait_event = wait_event,
      .make_queue = make_cuda_queue,
      .make_exchange = make_exchange,
      .describe_devices = describe_devices,
      .quantize = on_gpu<cuda::launch_quantize>,
      .dequantize = on_gpu<cuda::launch_dequantize>,
      .tensor_scale = on_gpu<cuda::launch_tensor_scale>,
      .exact_product = on_gpu<cuda::launch_exact_product>,
      .activate_rows = on_gpu<cuda::launch_activation>,
      .fill_bias = on_gpu<cuda::launch_fill_bias>,
      .make_cublas = cuda::make_cublas,
      .make_cutlass = cuda::make_cutlass,
      .map_choices = on_gpu<cuda::map_choices>,
      .scatter_rows = on_gpu<cuda::scatter_rows>,
      .copy_rows = on_gpu<cuda::copy_rows>,
      .reduce_rows = on_gpu<cuda::reduce_rows>,
      .count_experts = on_gpu<cuda::count_experts>,
      .map_ids = on_gpu<cuda::map_ids>,
      .round_up_and_sum = on_gpu<cuda::round_up_and_sum>,
      .rename_ids = on_gpu<cuda::rename_ids>,
      .mark_rows = on_gpu<cuda::mark_rows>,
      .weigh_rows = on_gpu<cuda::weigh_rows>,
      .gate_weights = on_gpu<cuda::gate_weights>,
      .fill_tails = on_gpu<cuda::fill_tails>,
      .find_row_segments = on_gpu<cuda::find_row_segments>,
      .mask_weights = on_gpu<cuda::mask_weights>,
      .running_sums = on_gpu<cuda::running_sums>,
      .count_sent_tokens = on_gpu<cuda::count_sent_tokens>,
      .make_meter = make_cuda_meter,
  };
  return &module;
}

}  // namespace switchyard
