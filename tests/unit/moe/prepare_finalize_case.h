// SPDX-License-Identifier: Apache-2.0
//
// prepare_finalize_case.h: compares one call of one prepare/finalize class with the oracle in every
// byte: what the experts get, its ids and weights, and the output. Receive memory holds large
// values of an earlier call, so reading a row without a token becomes visible.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "switchyard/prepare_finalize.h"

#include "reference/reference.h"

namespace switchyard::test {

inline constexpr PrepareKind kAllClasses[] = {
    PrepareKind::kLowLatency, PrepareKind::kElasticDecode, PrepareKind::kElasticPrefill,
    PrepareKind::kAllGather,  PrepareKind::kAllToAll,      PrepareKind::kAllToAllOneSided,
    PrepareKind::kLocal};

struct ClassCase {
  PrepareKind kind = PrepareKind::kLowLatency;
  /// Number of tokens per rank.
  std::vector<std::int64_t> num_tokens{5, 0, 4};
  std::int32_t num_experts = 7;
  std::int32_t num_topk = 3;
  std::int64_t hidden = 136;
  std::int64_t max_tokens_per_rank = 6;
  double none_share = 0.2;
  QuantScheme scheme{};
  std::optional<QuantScheme> wire_scheme{};
  std::optional<float> static_scale{};
  ScaleLayout scale_layout = ScaleLayout::kRowMajor;
  std::optional<Reduce> reduce{};
  std::int64_t expert_alignment = 1;
  std::vector<std::int32_t> global_to_physical{};
  DType input = DType::kBF16;
  bool defers = false;
  /// Passed as PrepareArguments::max_tokens; 0: the configured maximum.
  std::int64_t max_tokens = 0;
  std::uint64_t seed = 1;

  int num_ranks() const { return static_cast<int>(num_tokens.size()); }
  bool is_local() const { return kind == PrepareKind::kLocal; }
  PrepareFinalizeConfig config() const;
  std::string describe() const;
};

using Bits = std::vector<std::uint16_t>;

/// Runs the case on every rank and compares everything with the oracle. Returns the outputs, bf16.
std::vector<Bits> check_class(const ClassCase& test);

/// One rank's input as tensors. `ids` are expert ids before any mapping.
struct CallInput {
  CallInput(const reference::RankInput& input, DType dtype);

  Tensor hidden;   ///< [T, H]
  Tensor ids;      ///< [T, K] i64
  Tensor weights;  ///< [T, K]

  PrepareArguments arguments() const { return {hidden, ids, weights}; }
};

/// Tokens of every rank with ids before any mapping; not rounded to bf16 when the input is wider.
reference::Batch random_batch_of(const ClassCase& test);

/// Experts that return x * (1 + e / 4) for physical expert e, rounded to bf16.
std::unique_ptr<Experts> make_scaling_experts(std::int32_t first_expert);

}  // namespace switchyard::test
