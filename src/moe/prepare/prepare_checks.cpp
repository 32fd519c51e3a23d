// SPDX-License-Identifier: Apache-2.0

#include "moe/prepare/prepare_checks.h"

#include <algorithm>
#include <bit>

#include "core/check_matrix.h"
#include "core/fail.h"
#include "core/format.h"

namespace switchyard {
namespace {

bool is_float(DType dtype) {
  return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32;
}

}  // namespace

void check_weighed_input(const PrepareRecipe& recipe, const PrepareFinalizeConfig& config,
                         const TensorView& hidden, const TensorView& topk_weights) {
  require(config.num_topk == 1, Errc::kInvalidArgument,
          "{}: apply_router_weight_on_input is set with {} experts a token, must be 1",
          name_of(recipe.kind), config.num_topk);
  require(hidden.num_dims() == 2 && is_float(hidden.dtype()) && hidden.is_contiguous() &&
              topk_weights.dtype() == DType::kF32 && topk_weights.is_contiguous() &&
              topk_weights.num_elements() == hidden.shape(0),
          Errc::kInvalidArgument,
          "{}: hidden is {} and topk_weights {}, must be bf16, f16 or f32 [T, H], contiguous, and "
          "f32 [T, 1]",
          name_of(recipe.kind), hidden, topk_weights);
  check_address(hidden, "prepare", "hidden");
  check_address(topk_weights, "prepare", "topk_weights");
}

ReturnedRows check_returned_rows(const PrepareRecipe& recipe, const PrepareFinalizeConfig& config,
                                 std::int64_t num_rows, const TensorView& rows,
                                 const WeightAndReduce& policy) {
  const char* const name = name_of(recipe.kind);
  if (is_expert_major(recipe.layout)) {
    // vLLM's class of DeepEP V2 alone has the weights of its rows.
    const bool is_contiguous = policy.kind == WeightAndReduceKind::kContiguous &&
                               recipe.kind == PrepareKind::kElasticPrefill;
    require(is_contiguous || policy.kind == WeightAndReduceKind::kDelegate ||
                policy.kind == WeightAndReduceKind::kNoOp,
            Errc::kInvalidArgument, "{}: weight_and_reduce is {}, must be delegate{} or no_op",
            name, name_of(policy.kind),
            recipe.kind == PrepareKind::kElasticPrefill ? ", contiguous" : "");
    const bool is_rows =
        rows.has_value() && rows.is_contiguous() && rows.num_elements() == num_rows * config.hidden;
    require(is_rows || !is_contiguous, Errc::kInvalidArgument,
            "{}: expert_output is {}, must be [{}, {}], contiguous, for contiguous", name, rows,
            num_rows, config.hidden);
    return {is_rows
                ? TensorView(rows.data(), rows.dtype(), {num_rows, config.hidden}, rows.device())
                : rows,
            is_contiguous};
  }
  if (policy.kind == WeightAndReduceKind::kNoOp) return {rows};
  require(policy.kind != WeightAndReduceKind::kNaiveBatched, Errc::kInvalidArgument,
          "{}: weight_and_reduce is naive_batched, must be delegate, no_op or contiguous", name);
  const std::int64_t num_topk = config.num_topk;
  require(rows.has_value() && rows.is_contiguous() &&
              rows.num_elements() == num_rows * num_topk * config.hidden,
          Errc::kInvalidArgument,
          "{}: expert_output is {}, must be [{}, {}, {}], contiguous, for {}; pass no_op for rows "
          "that are summed",
          name, rows, num_rows, num_topk, config.hidden, name_of(policy.kind));
  return {TensorView(rows.data(), rows.dtype(), {num_rows, num_topk, config.hidden}, rows.device()),
          true};
}

std::int64_t rounded_max_tokens(const PrepareRecipe& recipe, const PrepareFinalizeConfig& config,
                                std::int64_t max_tokens) {
  if (max_tokens <= 0 || recipe.kind != PrepareKind::kElasticDecode) return max_tokens;
  if (max_tokens >= config.max_tokens_per_rank) return max_tokens;
  const auto rounded = std::bit_ceil(static_cast<std::uint64_t>(max_tokens));
  return std::min(static_cast<std::int64_t>(rounded), config.max_tokens_per_rank);
}

bool sends_packed_scales(const PrepareRecipe& recipe, const PrepareFinalizeConfig& config,
                         bool experts_take_them) {
  const QuantScheme& scheme = config.scheme;
  const bool is_fp8_block = scheme.dtype == DType::kE4M3 && scheme.group == ScaleGroup::kBlock &&
                            scheme.block == 128 && !config.wire_scheme.has_value();
  return recipe.kind == PrepareKind::kLowLatency && is_fp8_block && experts_take_them &&
         scheme.scale_format != ScaleFormat::kE8M0Packed;
}

}  // namespace switchyard
