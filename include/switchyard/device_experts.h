// SPDX-License-Identifier: Apache-2.0
//
// device_experts.h: the expert MLP over rows in the memory of a GPU. Users may bring their own.
//
// Letters used for shapes in this header:
//   L  local experts     H  elements per row (hidden)     N  rows of the receive buffer
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "switchyard/experts.h"
#include "switchyard/export.h"
#include "switchyard/quant.h"
#include "switchyard/stream.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// What dispatch hands to the experts: ExpertRows whose counts are device memory, because the host
/// never learns them.
struct DeviceExpertRows {
  TensorView rows;          ///< [N, H], or [L, C, H] in a batch; bf16, f16, f32 or as stored
  TensorView scales;        ///< as ExpertRows::scales; absent without scales
  QuantScheme scheme;       ///< how rows are quantized
  TensorView first_row;     ///< [L] i64 first row of each expert; not looked at in a batch
  TensorView num_rows;      ///< [L] i32 valid rows of each; the rest is undefined
  TensorView tensor_scale;  ///< [1] or [L] f32: the global scale of nvfp4; else absent
  ScaleLayout scale_layout = ScaleLayout::kRowMajor;
};

/// Serves one thread at a time.
class SWITCHYARD_API DeviceExperts {
 public:
  DeviceExperts() = default;
  DeviceExperts(const DeviceExperts&) = delete;
  DeviceExperts& operator=(const DeviceExperts&) = delete;
  virtual ~DeviceExperts() = default;

  virtual std::string_view name() const = 0;
  /// As Experts.
  virtual bool is_batch_invariant() const = 0;
  virtual bool supports_packed_ue8m0_act_scales() const { return false; }
  virtual bool expects_unquantized_inputs() const { return false; }
  /// False when `apply` reads counts on the host: it waits for the stream, and cannot be captured.
  virtual bool is_capturable(bool is_batched) const = 0;

  /// Bytes of the GPU that `apply` wants as scratch for rows of this shape: [N, H] or [L, C, H].
  virtual std::size_t workspace_bytes(const TensorView& rows) const = 0;

  /// Writes output, bf16 of the shape of rows, at the places of the valid rows; other rows of it
  /// become undefined. `workspace`: u8, at least workspace_bytes. Counts are held to the rows that
  /// there are. Where is_capturable is false, this waits for the stream.
  ///
  /// Errors: kInvalidArgument (shape, dtype, scheme), kWorkspaceTooSmall.
  virtual void apply(const DeviceExpertRows& input, const TensorView& output,
                     const TensorView& workspace, Stream stream) = 0;
};

/// By name. `weights` and options are host memory, copied here to the GPU that is current.
///
///   "exact"   the bits of make_exact_experts: one f32 chain an output, k ascending, fma, from +0.
///             bf16 weights keep their 2 bytes, all else takes 4.
///   "cublas"  bf16 tensor-core GEMMs, f32 sums: strided-batched over a batch, all C rows of it,
///             and grouped over contiguous rows, whose counts it reads. Weights, and rows that are
///             not bf16, are rounded to bf16 first. Row results may depend on the batch. Call it
///             once before it is captured: cuBLAS loads what it needs when it is needed.
///
/// Both take every scheme of rows and of ExpertOptions::intermediate. cuBLAS is loaded when asked
/// for (setting SWITCHYARD_CUBLAS).
///
/// Errors: kNotAvailable (no GPU; no cuBLAS: what was looked for), kInvalidArgument, kOutOfMemory.
SWITCHYARD_API std::unique_ptr<DeviceExperts> make_device_experts(
    std::string_view name, const ExpertWeights& weights, const ExpertOptions& options = {});

}  // namespace switchyard
