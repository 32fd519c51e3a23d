// SPDX-License-Identifier: Apache-2.0
//
// router.h: turns router logits into chosen experts and their weights.
//
// Letters used for shapes in this header:
//   T  tokens     E  experts     K  experts chosen per token     H  elements per token
#pragma once

#include <cstdint>

#include "switchyard/export.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// How logits become scores.
enum class Scoring : std::uint8_t {
  kSoftmax,
  kSigmoid,
  kSparseMixer,  ///< PhiMoE at inference, K = 2: each choice, without those before it, is weighted
                 ///< by a softmax over the logits that are near the largest; see `jitter`
};

/// How experts are restricted to the best groups before the top-k.
enum class GroupSelection : std::uint8_t {
  kNone,
  kMax,      ///< a group scores as its best expert (DeepSeek-V2, group_limited_greedy)
  kTop2Sum,  ///< a group scores as the sum of its two best biased scores (DeepSeek-V3, noaux_tc)
};

/// How experts are chosen and weighted.
struct RouterConfig {
  std::int32_t num_experts = 0;         ///< E
  std::int32_t num_topk = 0;            ///< K, from 1 to 64 and at most E
  Scoring scoring = Scoring::kSoftmax;  ///< how logits become scores
  bool norm_topk_prob = false;          ///< divide the chosen weights by their sum
  float routed_scaling_factor = 1.0f;   ///< multiplies the weights, after normalization
  GroupSelection group_selection = GroupSelection::kNone;  ///< how groups are chosen
  std::int32_t num_groups = 1;                             ///< must divide E
  std::int32_t topk_groups = 1;                            ///< groups that remain eligible
  float norm_min = 0.0f;  ///< norm_topk_prob divides by no less (Ernie-4.5: moe_norm_min)
  /// The choice compares the logits, which order experts whose scores round to 1 (Llama-4). The
  /// bias is added to them, and so counts in the weights too (gpt-oss).
  bool bias_on_logits = false;
  /// kSparseMixer (PhiMoE: router_jitter_noise): a logit x is near the largest, m, unless
  /// (m - x) / max(|x|, m) is above 2 * jitter.
  float jitter = 0.01f;
};

/// logits = hidden x gate^T in f32: one fma chain per logit, h ascending, from +0.
///
///   hidden  [T, H]  bf16, f16 or f32, rows contiguous
///   gate    [E, H]  bf16, f16 or f32, contiguous
///   logits  [T, E]  f32, contiguous; written
///
/// Errors: kInvalidArgument (shapes, dtypes).
SWITCHYARD_API void router_logits(const TensorView& hidden, const TensorView& gate,
                                  const TensorView& logits);

/// Chooses experts and lists them best first. Ties go to the lower id; NaN scores rank last.
///
///   logits        [T, E]  f32, contiguous
///   bias          [E] f32 or absent (e_score_correction_bias): added to the scores for the choice
///                 only, and weights come from the unbiased scores; unless bias_on_logits
///   topk_ids      [T, K]  i32 or i64, contiguous; written
///   topk_weights  [T, K]  f32, contiguous; written
///
/// With kTop2Sum and norm_topk_prob the divisor is sum + 1e-20. Softmax and sigmoid use the
/// library's own exp, so the bits are the same on every machine.
/// Errors: kInvalidArgument (shapes, dtypes, an inconsistent config).
/// Source: Hugging Face DeepSeek-V2/V3, Qwen2-MoE, Mixtral, gpt-oss, Llama-4, Ernie-4.5 and PhiMoE
/// routers.
SWITCHYARD_API void select_experts(const RouterConfig& config, const TensorView& logits,
                                   const TensorView& bias, const TensorView& topk_ids,
                                   const TensorView& topk_weights);

}  // namespace switchyard
