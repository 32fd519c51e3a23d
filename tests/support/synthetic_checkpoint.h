// SPDX-License-Identifier: Apache-2.0
//
// synthetic_checkpoint.h: a small random checkpoint of each model family, with the output of its
// MoE layer computed in double precision from the same numbers. That code shares nothing with the
// library: it follows the family's published model code, not config.json.
//
// Letters used for shapes in this header:
//   T  tokens     H  hidden     K  experts chosen per token
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "switchyard/tensor.h"

#include "support/synthetic_family.h"

namespace switchyard::test {

struct SyntheticOptions {
  SyntheticFamily family = SyntheticFamily::kTinyMoe;
  DType dtype = DType::kBF16;  ///< of expert weights: bf16, f16, f32, or e4m3 with 128 x 128 scales
  int num_shards = 1;  ///< 2 or more: experts are spread over that many files, with an index
  int num_tokens = 16;
  std::uint64_t seed = 1;
  /// DeepSeek only: overrides the family's norm_topk_prob; -1 keeps it.
  int norm_topk_prob = -1;
};

struct SyntheticCheckpoint {
  std::string folder;
  std::int32_t layer = 0;  ///< the only MoE layer in the checkpoint
  std::int32_t hidden = 0;
  std::int32_t num_experts = 0;
  std::int32_t num_topk = 0;
  std::int32_t num_tokens = 0;
  std::vector<std::uint16_t> hidden_states;  ///< [T, H] bf16
  /// No two scores that decide a choice are closer than 1e-4, so f32 and double choose the same.
  std::vector<std::int32_t> topk_ids;  ///< [T, K], best first
  std::vector<double> topk_weights;    ///< [T, K]
  std::vector<double> routed_output;   ///< [T, H] of the routed experts
  std::vector<double> shared_output;   ///< [T, H] of the shared experts, gated if the family does
};

/// Writes config.json and the weights into an existing folder.
SyntheticCheckpoint write_synthetic_checkpoint(const std::string& folder,
                                               const SyntheticOptions& options);

/// Returns element `index` of a contiguous f32, f16, bf16 or e4m3 tensor.
double element_of(const TensorView& tensor, std::int64_t index);

}  // namespace switchyard::test
