// SPDX-License-Identifier: Apache-2.0
//
// prepare_finalize_case.h: small calls of the prepare/finalize classes, for tests of what a call
// may vary and of what is refused. What every class gives is compared with the oracle in
// instruments/conformance.
#pragma once

#include <optional>
#include <vector>

#include "switchyard/modular_kernel.h"
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
  std::optional<Reduce> reduce{};
  std::uint64_t seed = 1;

  int num_ranks() const { return static_cast<int>(num_tokens.size()); }
  bool is_local() const { return kind == PrepareKind::kLocal; }
  PrepareFinalizeConfig config() const;
};

/// One rank's input as tensors.
struct CallInput {
  explicit CallInput(const reference::RankInput& input);

  Tensor hidden;   ///< [T, H] bf16
  Tensor ids;      ///< [T, K] i64
  Tensor weights;  ///< [T, K]

  PrepareArguments arguments() const { return {hidden, ids, weights}; }
};

/// Tokens of every rank.
reference::Batch random_batch_of(const ClassCase& test);

/// The factor with which expert e multiplies a row.
inline float factor_of(std::int64_t expert) { return 1.0f + static_cast<float>(expert) / 4.0f; }

/// Classes that hand out rows grouped by expert.
bool is_grouped(PrepareKind kind);

/// [M, K, H]: one row per choice that this rank serves, NaN for the others.
Tensor choice_rows(const PrepareFinalize& object, const Prepared& prepared);

/// Expert-major result rows of experts from `first` on; multiplied by their weights if
/// `is_weighted`.
Tensor grouped_rows(const PrepareFinalize& object, const Prepared& prepared, std::int32_t first,
                    bool is_weighted);

/// A layer around experts that multiply a row by their factor and round to bf16. Collective.
ModularKernel make_scaling_layer(const Group& group, const ClassCase& test);

}  // namespace switchyard::test
