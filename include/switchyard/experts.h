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
#include <span>
#include <string_view>

#include "switchyard/expert_rows.h"
#include "switchyard/export.h"
#include "switchyard/quant.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// Weights of the local experts. down( silu(gate(x)) * up(x) ).
struct ExpertWeights {
  TensorView gate;  ///< [L, I, H] bf16, f16, f32, or e4m3 with scales
  TensorView up;    ///< [L, I, H]
  TensorView down;  ///< [L, H, I]
  /// Inverse scales of e4m3 weights, one for each 128 x 128 block, else absent.
  TensorView gate_scale;  ///< [L, cdiv(I, 128), cdiv(H, 128)] f32
  TensorView up_scale;    ///< as gate_scale
  TensorView down_scale;  ///< [L, cdiv(H, 128), cdiv(I, 128)] f32
};

/// Serves one thread at a time.
class SWITCHYARD_API Experts {
 public:
  Experts() = default;
  Experts(const Experts&) = delete;
  Experts& operator=(const Experts&) = delete;
  virtual ~Experts() = default;

  virtual std::string_view name() const = 0;

  /// True when a row's result never depends on the other rows of the batch.
  virtual bool is_batch_invariant() const = 0;

  /// Scratch that `apply` wants for a receive buffer of `num_rows` rows.
  virtual std::size_t workspace_bytes(std::int64_t num_rows) const = 0;

  /// Writes output [N, H] bf16 at the places of the valid rows; other rows stay as they are.
  /// `workspace` holds at least workspace_bytes(N) bytes.
  ///
  /// Errors: kInvalidArgument (shape, dtype, scheme), kWorkspaceTooSmall.
  virtual void apply(const ExpertRows& input, const TensorView& output,
                     std::span<std::byte> workspace) = 0;
};

struct ExpertOptions {
  /// Requantizes the activation between the two GEMMs, as fp8 pipelines do; kNone: stays f32 in
  /// registers, rounded once to bf16. For one scale a tensor: one scale for each expert's rows.
  QuantScheme intermediate = schemes::kNone;
};

/// "exact": every output is one f32 chain, k ascending, fma, so results are the same bits for every
/// batch, rank count and machine. Weights are repacked once, here.
///
/// Errors: kInvalidArgument.
SWITCHYARD_API std::unique_ptr<Experts> make_exact_experts(const ExpertWeights& weights,
                                                           const ExpertOptions& options = {});

/// "onednn": fast; row results may depend on the batch. Errors: kNotAvailable when the build has no
/// oneDNN, kInvalidArgument.
SWITCHYARD_API std::unique_ptr<Experts> make_onednn_experts(const ExpertWeights& weights,
                                                            const ExpertOptions& options = {});

/// By name: "exact" or "onednn".
SWITCHYARD_API std::unique_ptr<Experts> make_experts(std::string_view name,
                                                     const ExpertWeights& weights,
                                                     const ExpertOptions& options = {});

}  // namespace switchyard
