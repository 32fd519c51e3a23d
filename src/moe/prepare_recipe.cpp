// SPDX-License-Identifier: Apache-2.0

#include "moe/prepare_recipe.h"

#include <algorithm>
#include <array>

#include "core/bytes.h"
#include "core/fail.h"
#include "quant/scheme.h"

namespace switchyard {
namespace {

constexpr std::array<PrepareRecipe, 7> kRecipes{{
    {PrepareKind::kLowLatency, Layout::kBatched, Reduce::kPerExpert, true, true, true, DType::kI64},
    {PrepareKind::kElasticDecode, Layout::kCompact, Reduce::kPerRank, true, true, true,
     DType::kI64},
    {PrepareKind::kElasticPrefill, Layout::kExpanded, Reduce::kPerRank, false, true, true,
     DType::kI64},
    {PrepareKind::kAllGather, Layout::kAllGather, Reduce::kPerRank, false, false, false,
     std::nullopt},
    {PrepareKind::kAllToAll, Layout::kCompact, Reduce::kPerRank, true, true, false, std::nullopt},
    {PrepareKind::kAllToAllOneSided, Layout::kByRank, Reduce::kPerRank, true, true, false,
     DType::kI32},
    {PrepareKind::kLocal, Layout::kExpanded, Reduce::kPerExpert, false, false, false, std::nullopt},
}};

constexpr std::array<const char*, 7> kNames{"low_latency", "elastic_decode", "elastic_prefill",
                                            "all_gather",  "all_to_all",     "all_to_all_one_sided",
                                            "local"};

constexpr std::array<std::int64_t, 8> kLowLatencyHiddens{2048, 2560, 3072, 4096,
                                                         5120, 6144, 7168, 8192};

bool wants_static_scale(const QuantScheme& scheme) {
  return scheme.group == ScaleGroup::kTensor || scheme.needs_tensor_scale();
}

void check_low_latency(const PrepareFinalizeConfig& config, int num_ranks) {
  constexpr std::int32_t kMaxTopk = 11;
  require(std::find(kLowLatencyHiddens.begin(), kLowLatencyHiddens.end(), config.hidden) !=
              kLowLatencyHiddens.end(),
          Errc::kInvalidArgument,
          "low_latency: hidden is {}, strict wants 2048, 2560, 3072, 4096, 5120, 6144, 7168 or "
          "8192; see round_up_hidden_low_latency",
          config.hidden);
  require(config.num_topk <= kMaxTopk, Errc::kInvalidArgument,
          "low_latency: num_topk is {}, strict wants at most {}", config.num_topk, kMaxTopk);
  require(config.num_experts % num_ranks == 0, Errc::kInvalidArgument,
          "low_latency: {} experts over {} ranks, strict wants the same number on each",
          config.num_experts, num_ranks);
  require(num_ranks * config.max_tokens_per_rank % 4 == 0, Errc::kInvalidArgument,
          "low_latency: {} ranks x {} tokens, strict wants a multiple of 4", num_ranks,
          config.max_tokens_per_rank);
}

void check_one_sided(const PrepareFinalizeConfig& config, int num_ranks) {
  constexpr std::array<std::int32_t, 11> kTopks{1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 22};
  constexpr int kMaxRanks = 64;
  require(std::find(kTopks.begin(), kTopks.end(), config.num_topk) != kTopks.end() &&
              num_ranks <= kMaxRanks && config.num_experts >= num_ranks,
          Errc::kInvalidArgument,
          "all_to_all_one_sided: num_topk {}, {} ranks, {} experts; strict wants an even num_topk "
          "up to 18, 1 or 22, at most {} ranks and an expert for each",
          config.num_topk, num_ranks, config.num_experts, kMaxRanks);
}

void check_two_sided(const PrepareFinalizeConfig& config) {
  constexpr std::int32_t kMaxTopk = 32;
  require(config.num_experts % 4 == 0 && config.num_topk <= kMaxTopk, Errc::kInvalidArgument,
          "all_to_all: {} experts and num_topk {}, strict wants a multiple of 4 and at most {}",
          config.num_experts, config.num_topk, kMaxTopk);
}

void check_placement(const PrepareFinalizeConfig& config) {
  const auto& table = config.global_to_physical;
  if (table.empty()) return;
  require(
      static_cast<std::int64_t>(table.size()) == config.num_experts, Errc::kInvalidArgument,
      "prepare_finalize: global_to_physical has {} entries, must have one for each of {} experts",
      table.size(), config.num_experts);
  for (std::size_t i = 0; i < table.size(); ++i) {
    require(table[i] >= 0 && table[i] < config.num_experts, Errc::kInvalidArgument,
            "prepare_finalize: global_to_physical[{}] is {}, must be from 0 to {}", i, table[i],
            config.num_experts - 1);
  }
}

}  // namespace

const char* name_of(PrepareKind kind) noexcept {
  const auto index = static_cast<std::size_t>(kind);
  return index < kNames.size() ? kNames[index] : "unknown";
}

std::optional<PrepareKind> prepare_kind_from_name(std::string_view name) noexcept {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<PrepareKind>(i);
  }
  return std::nullopt;
}

const PrepareRecipe& recipe_of(PrepareKind kind) {
  const auto index = static_cast<std::size_t>(kind);
  require(index < kRecipes.size(), Errc::kInvalidArgument,
          "prepare_finalize: kind is {}, must be from 0 to {}", index, kRecipes.size() - 1);
  return kRecipes[index];
}

void check_prepare_config(const PrepareRecipe& recipe, const PrepareFinalizeConfig& config,
                          int num_ranks) {
  check_scheme("prepare_finalize", config.scheme);
  const QuantScheme wire = wire_scheme_of(config);
  check_scheme("prepare_finalize", wire);
  require(config.static_scale.has_value() ||
              !(config.scheme.needs_tensor_scale() || wants_static_scale(wire)),
          Errc::kInvalidArgument,
          "prepare_finalize: static_scale is absent, {} needs one: the scale of all tokens",
          name_of(config.scheme));
  require(config.wire_scheme.value_or(config.scheme) == config.scheme || !wire.is_quantized() ||
              wire.scale_format != ScaleFormat::kE8M0Packed || wire.block == 128,
          Errc::kInvalidArgument,
          "prepare_finalize: wire_scheme has packed UE8M0 scales of blocks of {}, must be 128",
          wire.block);
  require(config.num_micro_batches >= 1, Errc::kInvalidArgument,
          "prepare_finalize: num_micro_batches is {}, must be at least 1",
          config.num_micro_batches);
  check_placement(config);
  if (!config.strict) return;
  if (recipe.kind == PrepareKind::kLowLatency) check_low_latency(config, num_ranks);
  if (recipe.kind == PrepareKind::kAllToAll) check_two_sided(config);
  if (recipe.kind == PrepareKind::kAllToAllOneSided) check_one_sided(config, num_ranks);
}

QuantScheme wire_scheme_of(const PrepareFinalizeConfig& config) {
  const QuantScheme wanted = config.wire_scheme.value_or(config.scheme);
  const bool needs_all_rows = wanted.group == ScaleGroup::kTensor && !config.static_scale;
  return needs_all_rows ? schemes::kNone : wanted;
}

ExchangeConfig exchange_config_of(const PrepareRecipe& recipe, const PrepareFinalizeConfig& config,
                                  bool defers) {
  ExchangeConfig result;
  result.num_experts = config.num_experts;
  result.num_topk = config.num_topk;
  result.hidden = config.hidden;
  result.max_tokens_per_rank = config.max_tokens_per_rank;
  result.layout = recipe.layout;
  result.scheme = defers ? schemes::kNone : wire_scheme_of(config);
  const bool arrives_as_wanted = !defers && result.scheme == config.scheme;
  if (arrives_as_wanted) result.scale_layout = config.scale_layout;
  result.reduce = config.reduce.value_or(recipe.reduce);
  result.combine_scheme = config.combine_scheme;
  // With per_expert the owner knows the weights, and experts grouped by expert need none.
  result.sends_weights = result.reduce == Reduce::kPerRank;
  result.worst_case_rows = recipe.has_fixed_shapes && recipe.layout == Layout::kCompact;
  if (recipe.layout == Layout::kExpanded) result.expert_alignment = config.expert_alignment;
  result.max_in_flight = config.num_micro_batches;
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
  require(hidden > 0, Errc::kInvalidArgument,
          "round_up_hidden_512_bytes: hidden is {}, must be at least 1", hidden);
  const std::int64_t bits = checked_mul<std::int64_t>(hidden, bits_of(dtype));
  const std::int64_t rounded = checked_mul(bits / kRowBits + (bits % kRowBits != 0), kRowBits);
  // 6-bit elements: the next multiple that whole elements fill.
  return cdiv<std::int64_t>(rounded, bits_of(dtype));
}

}  // namespace switchyard
