// SPDX-License-Identifier: Apache-2.0
//
// experts.h: the expert MLP over the rows that dispatch delivered. Users may bring their own.
//
// Letters used for shapes in this header:
//   L  local experts     H  elements per row (hidden)     I  intermediate elements
//   N  rows of the receive buffer, valid and not          S  scales per row
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "switchyard/activation.h"
#include "switchyard/expert_rows.h"
#include "switchyard/export.h"
#include "switchyard/quant.h"
#include "switchyard/stream.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// The block of a quantized weight whose elements share a scale; -1: all of that dimension. Mirrors
/// vLLM's GroupShape.
struct WeightBlock {
  std::int32_t outputs = 128;  ///< rows of the weight
  std::int32_t inputs = 128;   ///< columns of the weight

  friend bool operator==(const WeightBlock&, const WeightBlock&) = default;
};

namespace weight_blocks {
inline constexpr WeightBlock k128x128{};       ///< DeepSeek's fp8 checkpoints
inline constexpr WeightBlock kTensor{-1, -1};  ///< one scale for each expert's matrix
inline constexpr WeightBlock kChannel{1, -1};  ///< one scale per output channel
inline constexpr WeightBlock kNvfp4{1, 16};    ///< nvfp4 weights
inline constexpr WeightBlock kMxfp4{1, 32};    ///< mxfp4 weights
}  // namespace weight_blocks

/// Weights of the local experts: down( activation(gate(x), up(x)) ). Any strides, so that gate and
/// up may be halves, or every other row, of one tensor; e2m1 is packed in pairs along its last
/// dimension, which is even and contiguous.
///
/// A weight of e4m3, i8 or e2m1 is element * scale, in f32; with an alpha, element * (scale *
/// alpha). Scales are f32, bf16, f16, e8m0 (mxfp4) or e4m3 (nvfp4); those of other weights are
/// absent.
struct ExpertWeights {
  TensorView gate;  ///< [L, I, H] bf16, f16, f32, e4m3, i8 or e2m1
  TensorView up;    ///< [L, I, H]
  TensorView down;  ///< [L, H, I]
  /// One scale for each block, of which the last may be partial.
  TensorView gate_scale;    ///< [L, cdiv(I, block.outputs), cdiv(H, block.inputs)]
  TensorView up_scale;      ///< as gate_scale
  TensorView down_scale;    ///< [L, cdiv(H, block.outputs), cdiv(I, block.inputs)]
  WeightBlock block{};      ///< of every quantized weight
  TensorView gate_alpha{};  ///< [L] f32, what nvfp4 scales are multiplied by; or absent, for 1
  TensorView up_alpha{};    ///< [L] f32
  TensorView down_alpha{};  ///< [L] f32
  TensorView gate_bias{};   ///< [L, I] bf16, f16 or f32; or absent
  TensorView up_bias{};     ///< [L, I]
  TensorView down_bias{};   ///< [L, H]
};

/// Serves one thread at a time.
class SWITCHYARD_API Experts {
 public:
  Experts() = default;
  Experts(const Experts&) = delete;
  Experts& operator=(const Experts&) = delete;
  virtual ~Experts() = default;

  /// For messages and reports.
  virtual std::string_view name() const = 0;

  /// Where apply works.
  virtual Device device() const { return Device::cpu(); }

  /// L, which a ModularKernel compares with its own; nothing: any.
  virtual std::optional<std::int32_t> num_local_experts() const { return std::nullopt; }

  /// Of the results: bf16, or f32 where nothing is rounded between the GEMMs.
  virtual DType output_dtype() const { return DType::kBF16; }

  /// True when a row's result never depends on the other rows of the batch.
  virtual bool is_batch_invariant() const = 0;

  /// True when rows quantized to fp8 blocks of 128 may come with packed UE8M0 scales: LowLatency
  /// then sends them so (vLLM's supports_packed_ue8m0_act_scales).
  virtual bool supports_packed_ue8m0_act_scales() const { return false; }

  /// True when the experts expect unquantized rows and quantize them themselves.
  virtual bool expects_unquantized_inputs() const { return false; }

  /// Whether apply may be captured in a CUDA graph, for [L, C, H] rows or for others: false on
  /// CPUs, and where counts are read on the host, which waits for the stream.
  virtual bool is_capturable(bool is_batched) const {
    (void)is_batched;
    return false;
  }

  /// Bytes of scratch that `apply` needs for rows of this shape and dtype, [N, H] or [L, C, H].
  virtual std::size_t workspace_bytes(const TensorView& rows) const = 0;

  /// Writes output, of output_dtype() and the shape of the rows, at the places of the valid rows.
  /// Other rows stay as they are on CPUs and become undefined on GPUs. `workspace` is memory of
  /// device() of at least workspace_bytes. Quantized rows are dequantized to f32 first.
  ///
  /// Errors: kInvalidArgument (shape, dtype, scheme, device), kWorkspaceTooSmall; "cutlass" also
  /// kNotSupported (alignment).
  virtual void apply(const ExpertRows& input, const TensorView& output,
                     std::span<std::byte> workspace, Stream stream = Stream::host()) = 0;
};

/// What make_experts takes besides weights.
struct ExpertOptions {
  /// Requantizes the activation between the two GEMMs, as fp8 pipelines do; kNone: stays f32 in
  /// registers, rounded once to bf16. {DType::kF32}, on CPUs: not rounded, and results are f32.
  /// Per-tensor schemes use one scale per expert.
  QuantScheme intermediate = schemes::kNone;
  Activation activation{};  ///< between the two GEMMs
  /// [1] or [L] f32, positive and finite, read once. One scale per tensor: replaces the dynamic
  /// one; nvfp4: the global scale, required; other schemes: absent.
  TensorView intermediate_scale{};
};

/// "exact": every output is one f32 chain, k ascending, fma, from +0, to which its bias is added,
/// so results are the same bits for every batch, rank count and device. `weights` and options are
/// host memory; weights are repacked once, here, for `device`: bf16 keeps its 2 bytes, all else
/// takes 4.
///
/// Errors: kInvalidArgument; on a GPU kNotAvailable, kOutOfMemory.
SWITCHYARD_API std::unique_ptr<Experts> make_exact_experts(const ExpertWeights& weights,
                                                           const ExpertOptions& options = {},
                                                           Device device = Device::cpu());

/// "onednn": fast on CPUs; row results may depend on the batch. Errors: kNotAvailable when the
/// build has no oneDNN, kInvalidArgument.
SWITCHYARD_API std::unique_ptr<Experts> make_onednn_experts(const ExpertWeights& weights,
                                                            const ExpertOptions& options = {});

/// "cublas": bf16 tensor-core GEMMs on a GPU, f32 sums: strided-batched over [L, C, H], all C rows
/// of it, and grouped over contiguous rows, whose counts it reads. Weights, and rows that are not
/// bf16, are rounded to bf16 first. Row results may depend on the batch. Call it once before
/// capturing it: cuBLAS loads its kernels lazily. The setting SWITCHYARD_CUBLAS is its path.
///
/// Errors: kNotAvailable (no GPU; no cuBLAS: what was looked for), kInvalidArgument, kOutOfMemory.
SWITCHYARD_API std::unique_ptr<Experts> make_cublas_experts(const ExpertWeights& weights,
                                                            const ExpertOptions& options,
                                                            Device device);

/// "cutlass": CUTLASS's grouped GEMM for Hopper, likewise. Counts stay on the GPU, so rows that
/// no token fills cost nothing and every call may be captured in a CUDA graph. Hidden and
/// intermediate must be multiples of 8; rows and output, and the bytes from one row to the next,
/// multiples of 16 bytes. Row results may depend on the batch. Source: CUTLASS 4, example 57.
///
/// Errors: kNotAvailable (no GPU; a compute capability other than 9.0; a build without CUTLASS),
/// kNotSupported (sizes), kInvalidArgument, kOutOfMemory.
SWITCHYARD_API std::unique_ptr<Experts> make_cutlass_experts(const ExpertWeights& weights,
                                                             const ExpertOptions& options,
                                                             Device device);

/// By name: "exact", on CPUs "onednn", on GPUs "cublas" and "cutlass". Errors: those of the
/// functions above.
SWITCHYARD_API std::unique_ptr<Experts> make_experts(std::string_view name,
                                                     const ExpertWeights& weights,
                                                     const ExpertOptions& options = {},
                                                     Device device = Device::cpu());

}  // namespace switchyard
