// SPDX-License-Identifier: Apache-2.0
//
// cuda_module.h: the part of the library that needs CUDA, behind one table of functions. It is
// loaded at the first use of a GPU; everything else works without it.
#pragma once

#include <memory>
#include <string>

#include "switchyard/error.h"
#include "switchyard/exchange.h"
#include "switchyard/stream.h"

#include "cuda/compat/compat_rows.h"
#include "cuda/experts/expert_blas.h"
#include "cuda/experts/expert_kernels.h"
#include "cuda/experts/layer_rows.h"
#include "cuda/permute/permute.h"
#include "device/device_facts.h"
#include "device/device_meter.h"
#include "device/device_queue.h"

namespace switchyard {

class ExchangeBackend;
namespace cuda {
struct QuantizeJob;
struct DequantizeJob;
}  // namespace cuda

/// Filled by the module. Each function is the GPU version of the public function with the same name
/// and throws the same errors.
struct CudaModule {
  const char* version = nullptr;  ///< of the library it was built with
  int (*device_count)() = nullptr;
  /// Device memory, zero-filled when the call returns; never null. Errors: kOutOfMemory,
  /// kNotAvailable (no such GPU).
  std::shared_ptr<std::byte> (*allocate)(Device device, std::size_t bytes) = nullptr;
  /// Ordered in the stream; either side may be host memory.
  void (*copy)(void* to, const void* from, std::size_t bytes, Stream stream) = nullptr;
  void (*fill)(void* to, int value, std::size_t bytes, Stream stream) = nullptr;
  void (*synchronize)(Stream stream) = nullptr;
  /// A stream that does not wait for the default stream; destroyed with the last copy.
  std::shared_ptr<CUstream_st> (*make_stream)(Device device) = nullptr;
  /// An event that stands behind everything in the stream so far; what follows in another stream
  /// waits for it. During capture both are part of the graph.
  std::shared_ptr<void> (*record_event)(Stream stream) = nullptr;
  void (*wait_event)(void* event, Stream stream) = nullptr;
  /// Of GPU (index mod number of GPUs), which becomes current for the calling thread; below 0: of
  /// the one that is. Errors: kNotAvailable.
  std::unique_ptr<DeviceQueue> (*make_queue)(int index) = nullptr;
  std::unique_ptr<ExchangeBackend> (*make_exchange)(const Group& group,
                                                    const ExchangeConfig& config,
                                                    const ExchangeOptions& options) = nullptr;
  /// For reports. `wanted_heap`: the setting SWITCHYARD_HEAP. Errors: kNotAvailable, kSystem.
  DeviceFacts (*describe_devices)(const std::string& wanted_heap) = nullptr;
  void (*quantize)(const cuda::QuantizeJob& job, Stream stream) = nullptr;
  void (*dequantize)(const cuda::DequantizeJob& job, Stream stream) = nullptr;
  void (*tensor_scale)(const cuda::QuantizeJob& job, Stream stream) = nullptr;

  // Experts (cuda/experts/expert_kernels.h, cuda/experts/expert_blas.h).
  void (*exact_product)(const cuda::ExpertProduct&, Stream) = nullptr;
  void (*activate_rows)(const cuda::ActivationJob&, Stream) = nullptr;
  void (*fill_bias)(const cuda::BiasJob&, Stream) = nullptr;
  /// `path`: the setting SWITCHYARD_CUBLAS.
  std::unique_ptr<cuda::ExpertBlas> (*make_cublas)(Device device,
                                                   const std::string& path) = nullptr;
  std::unique_ptr<cuda::ExpertBlas> (*make_cutlass)(Device device) = nullptr;

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

  // Of the calls that other libraries have (cuda/compat/compat_rows.h).
  void (*fill_tails)(const cuda::FillTailsArgs&, Stream) = nullptr;
  void (*find_row_segments)(const cuda::RowSegmentsArgs&, Stream) = nullptr;
  void (*mask_weights)(const cuda::MaskWeightsArgs&, Stream) = nullptr;
  void (*running_sums)(const cuda::RunningSumsArgs&, Stream) = nullptr;
  void (*count_sent_tokens)(const cuda::SentTokensArgs&, Stream) = nullptr;

  /// Collective. Errors: as the constructor of Exchange.
  std::unique_ptr<DeviceMeter> (*make_meter)(const Group& group) = nullptr;
};

/// The loaded module. Errors: kNotAvailable if it was not built, is not found or has another
/// version, or if there is no driver or no GPU; the message says which.
const CudaModule& cuda_module();

/// Empty, or why cuda_module() would throw.
std::string why_no_cuda();

/// For a program whose ranks may be threads that share a GPU: kernels are loaded in advance, as
/// loading one may wait for the kernel of a peer, and each rank has a hardware queue. Call it
/// before the first use of CUDA. It affects this process and the ranks it starts; what the user has
/// set in the environment stays.
void prepare_for_shared_gpus();

/// The entry point of the module.
extern "C" const CudaModule* switchyard_cuda_module();

}  // namespace switchyard
