// SPDX-License-Identifier: Apache-2.0
//
// cuda_module.h: the part of the library that needs CUDA, as one table of functions. The library
// loads it at the first use of a GPU; without it everything else works.
#pragma once

#include <memory>
#include <string>

#include "switchyard/device_exchange.h"
#include "switchyard/error.h"
#include "switchyard/stream.h"

#include "cuda/experts/expert_blas.h"
#include "cuda/experts/expert_kernels.h"
#include "cuda/experts/layer_rows.h"
#include "cuda/permute/permute.h"
#include "device/device_exchange_backend.h"
#include "device/device_facts.h"
#include "device/device_meter.h"
#include "device/device_queue.h"

namespace switchyard {

namespace cuda {
struct QuantizeJob;
struct DequantizeJob;
}  // namespace cuda

/// Filled by the module. Each function is the GPU version of the public function of its name, and
/// throws the same errors.
struct CudaModule {
  const char* version = nullptr;  ///< of the library it was built with
  int (*device_count)() = nullptr;
  /// Of GPU (index mod number of GPUs), which becomes current for the calling thread; below 0: of
  /// the one that is. Errors: kNotAvailable.
  std::unique_ptr<DeviceQueue> (*make_queue)(int index) = nullptr;
  std::unique_ptr<DeviceExchangeBackend> (*make_exchange)(
      const Group& group, const ExchangeConfig& config,
      const DeviceExchangeOptions& options) = nullptr;
  /// For reports. `wanted_heap`: the setting SWITCHYARD_HEAP. Errors: kNotAvailable, kSystem.
  DeviceFacts (*describe_devices)(const std::string& wanted_heap) = nullptr;
  void (*quantize)(const cuda::QuantizeJob& job, Stream stream) = nullptr;
  void (*dequantize)(const cuda::DequantizeJob& job, Stream stream) = nullptr;

  // Experts (cuda/expert_kernels.h, cuda/expert_blas.h).
  void (*exact_product)(const cuda::ExpertProduct&, Stream) = nullptr;
  void (*activate_rows)(const cuda::ActivationJob&, Stream) = nullptr;
  void (*fill_bias)(const cuda::BiasJob&, Stream) = nullptr;
  /// `path`: the setting SWITCHYARD_CUBLAS.
  std::unique_ptr<cuda::ExpertBlas> (*make_blas)(const std::string& path) = nullptr;

  // The permute family (cuda/permute.h).
  void (*map_choices)(const cuda::MapArgs&, Stream) = nullptr;
  void (*scatter_rows)(const cuda::ScatterArgs&, Stream) = nullptr;
  void (*copy_rows)(const ByteRows& from, const ByteRows& to, Stream) = nullptr;
  void (*reduce_rows)(const cuda::ReduceArgs&, Stream) = nullptr;
  void (*count_experts)(const cuda::CountArgs&, Stream) = nullptr;
  void (*map_ids)(const cuda::MapIdsArgs&, Stream) = nullptr;
  void (*round_up_and_sum)(const cuda::RoundUpArgs&, Stream) = nullptr;

  // Of the prepare/finalize classes (cuda/layer_rows.h).
  void (*rename_ids)(const cuda::RenameIdsArgs&, Stream) = nullptr;
  void (*mark_rows)(const cuda::MarkRowsArgs&, Stream) = nullptr;
  void (*weigh_rows)(const cuda::WeighRowsArgs&, Stream) = nullptr;
  void (*gate_weights)(const cuda::GateWeightsArgs&, Stream) = nullptr;
  /// Collective. Errors: as the constructor of DeviceExchange.
  std::unique_ptr<DeviceMeter> (*make_meter)(const Group& group) = nullptr;
};

/// Errors: kNotAvailable: not built, not found, of another version, no driver or no GPU; the
/// message says which.
const CudaModule& cuda_module();

/// Empty, or why cuda_module() would throw.
std::string why_no_cuda();

/// The entry point of the module.
extern "C" const CudaModule* switchyard_cuda_module();

}  // namespace switchyard
