// SPDX-License-Identifier: Apache-2.0
//
// device_prepare_finalize.h: PrepareFinalize on GPUs. The same classes, configuration, rows, ids
// and bits; work is ordered in streams, nothing waits on the host, and what the host does not know
// (how many rows came) stays in device memory.
//
// Letters used for shapes in this header:
//   T  tokens on this rank     K  experts chosen per token     H  elements per token
//   L  local experts           E  experts of all ranks         M, N  rows of the receive buffer
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "switchyard/device_exchange.h"
#include "switchyard/device_experts.h"
#include "switchyard/export.h"
#include "switchyard/group.h"
#include "switchyard/prepare_finalize.h"
#include "switchyard/stream.h"
#include "switchyard/tensor.h"
#include "switchyard/weight_and_reduce.h"

namespace switchyard {

/// As ExpertTokensMetadata, in the memory of the GPU.
struct DeviceTokensMetadata {
  TensorView expert_num_tokens;  ///< [L] i32
};

/// What prepare hands to the experts: device memory of the class, filled when the stream gets
/// there, valid until finalize of the same micro-batch. Tensors have the largest shape of the call.
struct DevicePrepared {
  /// As Prepared::experts. A row a token: first_row absent, num_rows how many tokens want each.
  DeviceExpertRows experts;
  TensorView total_rows;  ///< [1] i32: rows that came
  /// kLowLatency: the counts; kElasticPrefill: rounded up to the alignment.
  std::optional<DeviceTokensMetadata> metadata;
  TensorView topk_ids;      ///< as Prepared::topk_ids; behind the last row that came: no expert
  TensorView topk_weights;  ///< f32, as topk_ids; 0 in rows without a token
};

/// As PrepareArguments; tensors are device memory.
struct DevicePrepareArguments {
  TensorView hidden;        ///< [T, H] bf16, f16 or f32
  TensorView topk_ids;      ///< [T, K] i32 or i64; -1: none
  TensorView topk_weights;  ///< [T, K] f32
  bool apply_router_weight_on_input = false;
  int micro_batch = 0;
  bool defer_input_quant = false;  ///< needs DevicePrepareFinalizeOptions::defers_input_quant
  bool weighs_in_place = false;
  /// The largest T of all ranks in this call, the same on each, which is not compared here; 0:
  /// max_tokens_per_rank. All shapes but those of kLowLatency follow it, as in PrepareArguments.
  std::int64_t max_tokens = 0;
};

/// As FinalizeArguments; tensors are device memory.
struct DeviceFinalizeArguments {
  TensorView output;         ///< [T, H] bf16, f16 or f32; the receive part writes it
  TensorView expert_output;  ///< as FinalizeArguments; contiguous
  WeightAndReduce weight_and_reduce{};
  int micro_batch = 0;
  /// [M, H] dtype of expert_output: memory for the sums of [M, K, H] rows. Only for rows a token
  /// with delegate or contiguous, which also weighs expert_output in place.
  TensorView reduced{};
  /// [T, H] bf16: added to the rounded output, which is rounded again; read by the receive part.
  TensorView shared{};
};

struct DevicePrepareFinalizeOptions {
  DeviceExchangeOptions exchange{};
  /// Takes the second exchange that defer_input_quant needs where rows travel quantized. Set too by
  /// post_init_setup with experts that expect unquantized input.
  bool defers_input_quant = false;
};

/// Mirrors PrepareFinalize, method by method. Collective and threaded as it; ordered as
/// DeviceExchange: everything may be captured in a CUDA graph, kernels find what the host cannot
/// see (ids out of range, peers that do not come), and check and every later call throw it.
///
/// A first launch of a kernel may wait for the GPU: ranks that are threads and share a GPU need
/// CUDA_MODULE_LOADING=EAGER in the environment.
///
/// Errors of every call: kInvalidArgument at once, with nothing sent; kTimeout, kPeerLost,
/// kAborted, kSystem.
class SWITCHYARD_API DevicePrepareFinalize {
 public:
  DevicePrepareFinalize() = default;
  DevicePrepareFinalize(const DevicePrepareFinalize&) = delete;
  DevicePrepareFinalize& operator=(const DevicePrepareFinalize&) = delete;
  virtual ~DevicePrepareFinalize() = default;

  virtual std::string_view name() const = 0;
  virtual PrepareKind kind() const = 0;
  virtual ActivationFormat activation_format() const = 0;
  virtual std::optional<DType> topk_indices_dtype() const = 0;
  virtual std::optional<std::int64_t> max_num_tokens_per_rank() const = 0;
  virtual const Group& group() const = 0;
  virtual int num_dispatchers() const = 0;
  virtual bool output_is_reduced() const = 0;
  virtual bool supports_async() const = 0;
  virtual std::int64_t hidden() const = 0;
  virtual std::int32_t num_topk() const = 0;
  virtual int num_micro_batches() const = 0;
  virtual std::int64_t max_buffer_rows() const = 0;
  virtual std::int32_t num_local_experts() const = 0;
  /// As PrepareFinalize, in device memory.
  virtual const TensorView& expert_map() const = 0;

  /// How rows are handed out, in which scale layout.
  virtual QuantScheme row_scheme(bool is_deferred) const = 0;
  virtual ScaleLayout row_scale_layout(bool is_deferred) const = 0;
  /// As DeviceExchange.
  virtual const char* heap() const = 0;
  virtual bool is_shared_gpu() const = 0;
  /// What this rank takes of its GPU; receive_bytes with the scratch of the class.
  virtual ExchangeMemory memory() const = 0;

  /// As PrepareFinalize. Before the first prepare. Collective; may take memory.
  virtual void post_init_setup(const DeviceExperts& experts) = 0;

  /// Sends in `stream`; the hook receives in `receive_stream`. The caller orders the two when they
  /// differ: the receive part comes after the send.
  virtual Pending<DevicePrepared> prepare_async(const DevicePrepareArguments& arguments,
                                                Stream stream, Stream receive_stream) = 0;
  /// Both parts, by one dispatch of DeviceExchange.
  virtual DevicePrepared prepare(const DevicePrepareArguments& arguments, Stream stream) = 0;

  virtual Pending<void> finalize_async(const DeviceFinalizeArguments& arguments, Stream stream,
                                       Stream receive_stream) = 0;
  virtual void finalize(const DeviceFinalizeArguments& arguments, Stream stream) = 0;

  virtual void abandon(int micro_batch, const std::string& reason) = 0;

  /// As DeviceExchange.
  virtual void check() const = 0;
};

/// As make_prepare_finalize, on the GPU that is current. Collective, except for kLocal.
///
/// Errors: as make_prepare_finalize and DeviceExchange; kNotSupported: a dynamic scale of a whole
/// tensor where received rows have gaps (kLowLatency, kAllToAllOneSided, kElasticPrefill with an
/// alignment above 1: give static_scale), f16 or f32 rows on the wire for a simulated scheme.
SWITCHYARD_API std::unique_ptr<DevicePrepareFinalize> make_device_prepare_finalize(
    PrepareKind kind, const Group& group, const PrepareFinalizeConfig& config,
    const DevicePrepareFinalizeOptions& options = {});

}  // namespace switchyard
