// SPDX-License-Identifier: Apache-2.0
//
// prepare_recipe.h: what makes one prepare/finalize class differ from another, as data: its layout,
// where rows are quantized, and what it reports. The work is done by one class for all.
#pragma once

#include <memory>
#include <vector>

#include "switchyard/prepare_finalize.h"

#include "plan/expert_ownership.h"

namespace switchyard {

struct PrepareRecipe {
  PrepareKind kind = PrepareKind::kLowLatency;
  Layout layout = Layout::kBatched;
  Reduce reduce = Reduce::kPerExpert;  ///< unless the configuration says another
  bool has_fixed_shapes = false;       ///< receive tensors of the largest size
  bool output_is_reduced = true;
  bool supports_async = true;
  std::int32_t num_micro_batches = 1;  ///< handles of the original

  ActivationFormat format() const {
    return layout == Layout::kBatched ? ActivationFormat::kBatched : ActivationFormat::kStandard;
  }
};

const PrepareRecipe& recipe_of(PrepareKind kind);

/// Refuses what no class serves.
/// Errors: kInvalidArgument, kNotSupported.
void check_prepare_config(const PrepareRecipe& recipe, const PrepareFinalizeConfig& config,
                          int num_ranks);

/// As configured, or those of the original.
std::int32_t num_micro_batches_of(const PrepareRecipe& recipe, const PrepareFinalizeConfig& config);

/// Which experts lie where: rank `holder` of the ownership is this rank.
struct ExpertHolder {
  ExpertOwnership ownership;
  int holder = 0;
  std::shared_ptr<const std::vector<int>> first_experts{};  ///< of `ownership`

  int first() const { return ownership.first(holder); }
  int count() const { return ownership.count(holder); }
};
ExpertHolder expert_holder_of(const PrepareRecipe& recipe, const PrepareFinalizeConfig& config,
                              int num_ranks, int rank);

/// Rows that travel unquantized and are quantized behind the exchange: of the type in which
/// unquantized results return.
QuantScheme plain_scheme_of(const PrepareFinalizeConfig& config);

/// What travels: nothing that a sender cannot apply.
QuantScheme wire_scheme_of(const PrepareFinalizeConfig& config);

/// What kLocal runs over. Nobody waits: its deadline only bounds how long one of several
/// micro-batches may compute.
Group group_of_one();

/// The exchange behind a class. `defers`: rows travel unquantized.
ExchangeConfig exchange_config_of(const PrepareRecipe& recipe, const PrepareFinalizeConfig& config,
                                  bool defers);

}  // namespace switchyard
