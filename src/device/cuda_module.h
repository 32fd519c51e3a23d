// SPDX-License-Identifier: Apache-2.0
//
// cuda_module.h: the part of the library that needs CUDA, behind one table of functions. It is
// loaded at the first use of a GPU; everything else works without it.
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

struct QuantizeJob;
struct DequantizeJob;

/// Filled by the module. Each function is the GPU version of the public function with the same name
/// and throws the same errors.
struct CudaModule {
  const char* version = nullptr;  ///< of the library it was built with
  int (*device_count)() = nullptr;
  /// Makes GPU (index mod number of GPUs) current for the calling thread and returns a queue on it.
  /// A negative index selects the GPU that is current. Errors: kNotAvailable.
  std::unique_ptr<DeviceQueue> (*make_queue)(int index) = nullptr;
  std::unique_ptr<DeviceExchangeBackend> (*make_exchange)(
      const Group& group, const ExchangeConfig& config,
      const DeviceExchangeOptions& options) = nullptr;
  /// For reports. `wanted_heap` is the value of the setting SWITCHYARD_HEAP. Errors: kNotAvailable,
  /// kSystem.
  DeviceFacts (*describe_devices)(const std::string& wanted_heap) = nullptr;
  void (*quantize)(const QuantizeJob& job, Stream stream) = nullptr;
  void (*dequantize)(const DequantizeJob& job, Stream stream) = nullptr;

  // Experts (cuda/experts/expert_kernels.h, cuda/experts/expert_blas.h).
  void (*exact_product)(const ExpertProduct&, Stream) = nullptr;
  void (*activate_rows)(const ActivationJob&, Stream) = nullptr;
  void (*fill_bias)(const BiasJob&, Stream) = nullptr;
  /// `path` is the value of the setting SWITCHYARD_CUBLAS.
  std::unique_ptr<ExpertBlas> (*make_blas)(const std::string& path) = nullptr;

  // Permutation (cuda/permute/permute.h).
  void (*map_choices)(const cuda::MapArgs&, Stream) = nullptr;
  void (*scatter_rows)(const cuda::ScatterArgs&, Stream) = nullptr;
  void (*copy_rows)(const ByteRows& from, const ByteRows& to, Stream) = nullptr;
  void (*reduce_rows)(const cuda::ReduceArgs&, Stream) = nullptr;
  void (*count_experts)(const cuda::CountArgs&, Stream) = nullptr;
  void (*map_ids)(const cuda::MapIdsArgs&, Stream) = nullptr;
  void (*round_up_and_sum)(const cuda::RoundUpArgs&, Stream) = nullptr;

  // Prepare and finalize (cuda/experts/layer_rows.h).
  void (*rename_ids)(const cuda::RenameIdsArgs&, Stream) = nullptr;
  void (*mark_rows)(const cuda::MarkRowsArgs&, Stream) = nullptr;
  void (*weigh_rows)(const cuda::WeighRowsArgs&, Stream) = nullptr;
  void (*gate_weights)(const cuda::GateWeightsArgs&, Stream) = nullptr;
  /// Collective. Errors: kNotAvailable (no GPU, or no way to share its memory), kOutOfMemory,
  /// kNotSupported (too many ranks), kInvalidArgument (ranks differ), kTimeout, kPeerLost,
  /// kAborted, kSystem.
  std::unique_ptr<DeviceMeter> (*make_meter)(const Group& group) = nullptr;
};

/// The loaded module. Errors: kNotAvailable if it was not built, is not found or has another
/// version, or if there is no driver or no GPU; the message says which.
const CudaModule& cuda_module();

/// Empty, or why cuda_module() would throw.
std::string why_no_cuda();

/// The entry point of the module.
extern "C" const CudaModule* switchyard_cuda_module();

}  // namespace switchyard
