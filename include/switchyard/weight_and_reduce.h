// SPDX-License-Identifier: Apache-2.0
//
// weight_and_reduce.h: who applies topk_weights and sums the expert rows of a token when experts
// return them unreduced. Mirrors vLLM's TopKWeightAndReduce classes as values of one type.
//
// Letters used for shapes in this header:
//   T  tokens     K  experts chosen per token     H  elements per row     L  local experts
//   C  capacity: rows per expert
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "switchyard/export.h"
#include "switchyard/stream.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// How the rows of a token become one.
enum class WeightAndReduceKind : std::uint8_t {
  kDelegate,      ///< the prepare/finalize object chooses; applying it is an error
  kNoOp,          ///< rows are already final
  kContiguous,    ///< [T, K, H]: row (t, k) belongs to choice k of token t
  kNaiveBatched,  ///< [L, C, H]: an expert's tokens, ascending, fill its first rows
};

/// Name in messages and JSON: "delegate", "no_op", "contiguous", "naive_batched".
SWITCHYARD_API const char* name_of(WeightAndReduceKind kind) noexcept;

/// A policy: a plain value, compared with ==. The default is kDelegate.
struct WeightAndReduce {
  WeightAndReduceKind kind = WeightAndReduceKind::kDelegate;  ///< the policy
  std::int32_t rank = 0;       ///< kNaiveBatched: local expert e is expert rank * L + e
  bool skips_padding = false;  ///< kContiguous: ignores choices without a local expert

  friend bool operator==(const WeightAndReduce&, const WeightAndReduce&) = default;

  /// @{ The policies.
  static constexpr WeightAndReduce delegate() { return {}; }
  static constexpr WeightAndReduce no_op() { return {WeightAndReduceKind::kNoOp}; }
  static constexpr WeightAndReduce contiguous(bool skips_padding = false) {
    return {WeightAndReduceKind::kContiguous, 0, skips_padding};
  }
  static constexpr WeightAndReduce naive_batched(std::int32_t rank) {
    return {WeightAndReduceKind::kNaiveBatched, rank};
  }
  /// @}

  /// This policy, or `fallback` when it delegates; prepare/finalize objects choose with it.
  constexpr WeightAndReduce or_else(const WeightAndReduce& fallback) const {
    return kind == WeightAndReduceKind::kDelegate ? fallback : *this;
  }
};

/// What weight_and_reduce takes besides the policy.
struct WeightAndReduceArguments {
  TensorView expert_output;  ///< bf16, f16 or f32; shape by kind; contiguous rows
  TensorView topk_weights;   ///< [T, K] f32, contiguous; ignored by kNoOp or when already applied
  TensorView topk_ids;       ///< [T, K] i32 or i64; ignored by kNoOp
  TensorView expert_map{};   ///< i32 [E] or absent; for kContiguous with skips_padding only
  bool apply_router_weight_on_input = false;  ///< the weights were applied before the experts
};

/// Applies a policy. Returns the tensor that holds the result, [T, H].
///
///   kDelegate       kInvalidArgument, always.
///   kNoOp           `output` absent or the same tensor as expert_output: returns expert_output and
///                   moves nothing. Otherwise copies into `output`, of the same shape and dtype.
///   kContiguous     [T, K, H], or [T K, H] over the same bytes. Row (t, k) becomes
///                   round(row * weight) IN PLACE, an f32 product rounded to the row's dtype; then
///                   output[t] = round(sum of its rows), in f32 from +0, k ascending. So bf16 rows
///                   are rounded twice, as in vLLM. With apply_router_weight_on_input the rows are
///                   not changed. With skips_padding, rows of choices whose id is negative, or is
///                   mapped to a negative one, are neither read nor written.
///   kNaiveBatched   output[t] = round(sum over the local experts of t, ascending, of
///                   fma(weight, row, sum)), in f32 from +0, rounded once; weight is the f32 sum
///                   of t's weights for that expert, k ascending, or 1 when already applied. vLLM
///                   rounds weight, product and every sum to the row's dtype. Tokens without local
///                   experts give +0.
///
///   output  [T, H]  dtype of expert_output, contiguous rows; written; must not overlap
///
/// On a GPU the bits are the same. Ids that the host refuses, and rows beyond C, are left out of
/// the sum there and added to num_errors (i32 [1], or absent); K is at most 1024; `workspace` is
/// device memory aligned to 16 bytes.
///
/// Not collective.
/// Errors: kInvalidArgument (shapes, dtypes, devices, an id without an entry in the map, an expert
/// with more tokens than C); nothing is written then. On a GPU also kWorkspaceTooSmall,
/// kNotAvailable.
/// Source: vLLM, topk_weight_and_reduce.py; moe_sum.
SWITCHYARD_API TensorView weight_and_reduce(const WeightAndReduce& policy,
                                            const WeightAndReduceArguments& arguments,
                                            const TensorView& output = {},
                                            Stream stream = Stream::host(),
                                            std::span<std::byte> workspace = {},
                                            const TensorView& num_errors = {});

/// Bytes of the workspace that a policy needs on a GPU; only kNaiveBatched needs one.
SWITCHYARD_API std::size_t weight_and_reduce_workspace_bytes(const WeightAndReduce& policy,
                                                             std::int64_t num_tokens,
                                                             std::int64_t num_topk,
                                                             std::int64_t num_local_experts);

}  // namespace switchyard
