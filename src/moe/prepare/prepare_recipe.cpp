// SPDX-License-Identifier: Apache-2.0

#include "moe/prepare/prepare_recipe.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "core/bytes.h"
#include "core/fail.h"
#include "exchange/exchange_shape.h"
#include "quant/quantize_checks.h"
#include "quant/scheme.h"

namespace switchyard {
namespace {

constexpr std::array<PrepareRecipe, 7> kRecipes{{
    {PrepareKind::kLowLatency, Layout::kBatched, Reduce::kPerExpert, true, true, true, 2},
    {PrepareKind::kElasticDecode, Layout::kCompact, Reduce::kPerRank, true, true, true, 2},
    {PrepareKind::kElasticPrefill, Layout::kExpanded, Reduce::kPerRank, false, true, true, 2},
    {PrepareKind::kAllGather, Layout::kAllGather, Reduce::kPerRank, false, false, false, 1},
    {PrepareKind::kAllToAll, Layout::kCompact, Reduce::kPerRank, true, true, false, 1},
    {PrepareKind::kAllToAllOneSided, Layout::kByRank, Reduce::kPerRank, true, true, false, 1},
    {PrepareKind::kLocal, Layout::kAllGather, Reduce::kPerExpert, false, false, false, 1},
}};

constexpr std::array<std::int64_t, 8> kLowLatencyHiddens{2048, 2560, 3072, 4096,
                                                         5120, 6144, 7168, 8192};

bool wants_static_scale(const QuantScheme& scheme) {
  return scheme.group == ScaleGroup::kTensor || scheme.needs_tensor_scale();
}

// Schemes on the wire and of the experts, which share one static scale.
void check_schemes(const PrepareFinalizeConfig& config) {
  const QuantScheme wire = wire_scheme_of(config);
  for (const QuantScheme& scheme : {config.scheme, wire}) {
    check_scheme("prepare_finalize", scheme);
    check_hidden("prepare_finalize", scheme, config.hidden);
  }
  require(config.static_scale.has_value() ||
              !(config.scheme.needs_tensor_scale() || wire.needs_tensor_scale()),
          Errc::kInvalidArgument,
          "prepare_finalize: static_scale is absent, nvfp4 needs one: the scale of all tokens");
  if (config.static_scale.has_value()) {
    check_scale_value("prepare_finalize", "static_scale", *config.static_scale);
  }
  require(wire == config.scheme || !wants_static_scale(wire) || !wants_static_scale(config.scheme),
          Errc::kInvalidArgument,
          "prepare_finalize: wire_scheme is {} and scheme {}, must not both take static_scale",
          name_of(wire), name_of(config.scheme));
}

void check_scale_layout(const PrepareFinalizeConfig& config) {
  if (config.scale_layout == ScaleLayout::kRowMajor) return;
  const QuantScheme& scheme = config.scheme;
  const bool has_rows =
      scheme.group != ScaleGroup::kTensor && num_scales(scheme, config.hidden) > 0;
  const bool is_byte = bits_of(scale_dtype(scheme)) == 8;
  require(
      has_rows && (config.scale_layout != ScaleLayout::kSwizzled || is_byte),
      Errc::kInvalidArgument, "prepare_finalize: scale_layout is {} for {}, must be row_major{}",
      name_of(config.scale_layout), name_of(scheme),
      has_rows ? " or column_major: swizzled scales are one byte" : ": its rows have no scales");
}

void check_placement(const PrepareRecipe& recipe, const PrepareFinalizeConfig& config) {
  const auto& table = config.global_to_physical;
  require(
      table.empty() || static_cast<std::int64_t>(table.size()) == config.num_experts,
      Errc::kInvalidArgument,
      "prepare_finalize: global_to_physical has {} entries, must have one for each of {} experts",
      table.size(), config.num_experts);
  for (std::size_t i = 0; i < table.size(); ++i) {
    require(table[i] >= 0 && table[i] < config.num_experts, Errc::kInvalidArgument,
            "prepare_finalize: global_to_physical[{}] is {}, must be from 0 to {}", i, table[i],
            config.num_experts - 1);
  }
  const bool is_local = recipe.kind == PrepareKind::kLocal;
  require(!config.slices_experts || recipe.layout == Layout::kAllGather, Errc::kInvalidArgument,
          "prepare_finalize: slices_experts is set for {}, must be all_gather",
          name_of(recipe.kind));
  const bool may_hold_part = is_local || config.slices_experts;
  require(config.experts_per_rank.empty() || !may_hold_part, Errc::kInvalidArgument,
          "prepare_finalize: experts_per_rank is given for {}, must be empty: there ep_size and "
          "ep_rank say which experts this rank holds",
          is_local ? "local" : "slices_experts");
  require(
      config.ep_size >= 1 && config.ep_rank >= 0 && config.ep_rank < config.ep_size &&
          (may_hold_part || config.ep_size == 1),
      Errc::kInvalidArgument, "prepare_finalize: ep_rank is {} and ep_size {} for {}, must be {}",
      config.ep_rank, config.ep_size, name_of(recipe.kind),
      may_hold_part ? "a rank of at least one" : "0 and 1: its group says who holds the experts");
}

}  // namespace

const PrepareRecipe& recipe_of(PrepareKind kind) {
  const auto index = static_cast<std::size_t>(kind);
  require(index < kRecipes.size(), Errc::kInvalidArgument,
          "prepare_finalize: kind is {}, must be from 0 to {}", index, kRecipes.size() - 1);
  return kRecipes[index];
}

void check_prepare_config(const PrepareRecipe& recipe, const PrepareFinalizeConfig& config,
                          int num_ranks) {
  require(num_ranks >= 1, Errc::kInvalidArgument, "prepare_finalize: {} ranks, must be at least 1",
          num_ranks);
  check_schemes(config);
  check_scale_layout(config);
  constexpr std::int32_t kMaxMicroBatches = 64;
  require(config.num_micro_batches >= 0 && config.num_micro_batches <= kMaxMicroBatches,
          Errc::kInvalidArgument,
          "prepare_finalize: num_micro_batches is {}, must be from 1 to {}, or 0 for those of the "
          "mirrored class",
          config.num_micro_batches, kMaxMicroBatches);
  check_placement(recipe, config);
}

std::int32_t num_micro_batches_of(const PrepareRecipe& recipe,
                                  const PrepareFinalizeConfig& config) {
  return config.num_micro_batches > 0 ? config.num_micro_batches : recipe.num_micro_batches;
}

ExpertHolder expert_holder_of(const PrepareRecipe& recipe, const PrepareFinalizeConfig& config,
                              int num_ranks, int rank) {
  if (recipe.kind == PrepareKind::kLocal || config.ep_size > 1) {
    return {{config.num_experts, config.ep_size}, config.ep_rank};
  }
  ExpertHolder holder{{config.num_experts, num_ranks, config.slices_experts}, rank};
  if (!config.experts_per_rank.empty()) {
    holder.first_experts = first_experts_of(config.experts_per_rank);
    holder.ownership.table = holder.first_experts->data();
  }
  return holder;
}

QuantScheme plain_scheme_of(const PrepareFinalizeConfig& config) {
  return config.combine_scheme.is_quantized() ? schemes::kNone : config.combine_scheme;
}

QuantScheme wire_scheme_of(const PrepareFinalizeConfig& config) {
  const QuantScheme wanted = config.wire_scheme.value_or(config.scheme);
  const bool needs_all_rows = wanted.group == ScaleGroup::kTensor && !config.static_scale;
  return needs_all_rows ? plain_scheme_of(config) : wanted;
}

ExchangeConfig exchange_config_of(const PrepareRecipe& recipe, const PrepareFinalizeConfig& config,
                                  bool defers) {
  ExchangeConfig result;
  result.num_experts = config.num_experts;
  result.experts_per_rank = config.experts_per_rank;
  result.num_topk = config.num_topk;
  result.hidden = config.hidden;
  result.max_tokens_per_rank = config.max_tokens_per_rank;
  const bool is_local = recipe.kind == PrepareKind::kLocal;
  result.layout = recipe.layout;
  result.slices_experts = is_local || config.slices_experts;
  result.scheme = defers ? plain_scheme_of(config) : wire_scheme_of(config);
  const bool arrives_as_wanted = !defers && result.scheme == config.scheme;
  if (arrives_as_wanted) result.scale_layout = config.scale_layout;
  // On one rank the two contracts are one, and rows come one per token.
  result.reduce = is_local ? Reduce::kPerRank : config.reduce.value_or(recipe.reduce);
  result.combine_scheme = config.combine_scheme;
  // With per_expert the owner knows the weights, and batched experts need none.
  result.sends_weights =
      result.reduce != Reduce::kPerExpert || recipe.kind == PrepareKind::kElasticPrefill;
  result.worst_case_rows = recipe.has_fixed_shapes && recipe.layout == Layout::kCompact;
  if (recipe.layout == Layout::kExpanded) result.expert_alignment = config.expert_alignment;
  result.max_in_flight = num_micro_batches_of(recipe, config);
  return result;
}

std::int64_t round_up_hidden_low_latency(std::int64_t hidden) {
  const auto it = std::lower_bound(kLowLatencyHiddens.begin(), kLowLatencyHiddens.end(), hidden);
  require(hidden > 0 && it != kLowLatencyHiddens.end(), Errc::kInvalidArgument,
          "round_up_hidden_low_latency: hidden is {}, must be from 1 to {}", hidden,
          kLowLatencyHiddens.back());
  return *it;
}

std::int64_t round_up_hidden_512_bytes(std::int64_t hidden, DType dtype) {
  constexpr std::int64_t kRowBits = 512 * 8;
  const std::int64_t unit = kRowBits / std::gcd<std::int64_t>(kRowBits, bits_of(dtype));
  require(hidden > 0, Errc::kInvalidArgument,
          "round_up_hidden_512_bytes: hidden is {}, must be at least 1", hidden);
  return checked_mul(hidden / unit + (hidden % unit != 0 ? 1 : 0), unit);
}

}  // namespace switchyard
