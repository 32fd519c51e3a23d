// SPDX-License-Identifier: Apache-2.0
//
// The table of backends and the three rules by which they send rows:
//   kAll         quantize, then send (all-gather, all-to-all, pplx)
//   kBlocks      quantize first where blocks of a row have scales of their own, else send 16 bits
//                and quantize what arrived, with one scale (DeepEP high throughput and V2)
//   kLowLatency  DeepEP's kernels quantize fp8 blocks of 128 by themselves; all else travels in 16
//                bits and is quantized on arrival
// Source: vLLM's all2all_utils.py and its prepare_finalize classes.

#include "switchyard/prepare_finalize_factory.h"

#include <array>

#include "core/fail.h"
#include "core/require_device.h"
#include "moe/prepare/prepare_recipe.h"
#include "quant/quantize_checks.h"

namespace switchyard {
namespace {

constexpr const char* kFunction = "choose_prepare_finalize";

enum class WireRule : std::uint8_t { kAll, kBlocks, kLowLatency };

struct BackendRule {
  PrepareKind kind;
  WireRule wire;
};

// In the order of All2AllBackend. MoRI, NIXL-EP and pplx are served by the class that is nearest.
constexpr std::array<BackendRule, 12> kBackendRules{{
    {PrepareKind::kAllGather, WireRule::kAll},          // allgather_reducescatter
    {PrepareKind::kAllGather, WireRule::kAll},          // naive
    {PrepareKind::kElasticDecode, WireRule::kBlocks},   // deepep_high_throughput
    {PrepareKind::kLowLatency, WireRule::kLowLatency},  // deepep_low_latency
    {PrepareKind::kElasticDecode, WireRule::kBlocks},   // deepep_v2
    {PrepareKind::kAllToAll, WireRule::kAll},           // flashinfer_nvlink_two_sided
    {PrepareKind::kAllToAll, WireRule::kAll},           // flashinfer_all2allv
    {PrepareKind::kAllToAllOneSided, WireRule::kAll},   // flashinfer_nvlink_one_sided
    {PrepareKind::kAllToAll, WireRule::kAll},           // mori_high_throughput
    {PrepareKind::kAllToAll, WireRule::kAll},           // mori_low_latency
    {PrepareKind::kLowLatency, WireRule::kLowLatency},  // nixl_ep
    {PrepareKind::kLowLatency, WireRule::kAll},         // pplx
}};

BackendRule rule_of(All2AllBackend backend) {
  const auto index = static_cast<std::size_t>(backend);
  require(index < kBackendRules.size(), Errc::kInvalidArgument,
          "{}: backend is {}, must be 0 to {}", kFunction, index, kBackendRules.size() - 1);
  return kBackendRules[index];
}

// vLLM's use_fp8_dispatch.
bool is_cast_by_deepep(const QuantConfig& quant) {
  return quant.use_fp8_w8a8() && quant.block_shape() == BlockShape{128, 128};
}

void quantize_on_arrival(PrepareFinalizeConfig& config) {
  if (config.scheme.is_quantized()) config.wire_scheme = plain_scheme_of(config);
}

void apply_blocks_rule(PrepareFinalizeConfig& config, const QuantConfig& quant, bool sends_mxfp8) {
  const bool is_mxfp8 = config.scheme == schemes::kMxfp8;
  if (quant.is_block_quantized() || (is_mxfp8 && sends_mxfp8)) return;
  quantize_on_arrival(config);
  // The originals quantize what arrived with per_act_token_quant off.
  if (config.scheme.group == ScaleGroup::kToken) config.scheme.group = ScaleGroup::kTensor;
}

void apply_low_latency_rule(PrepareFinalizeConfig& config, const QuantConfig& quant,
                            bool nvfp4_dispatch) {
  if (is_cast_by_deepep(quant)) {
    config.scheme.rule = ScaleRule::kMultiply;
  } else if (!quant.use_nvfp4_w4a4()) {
    quantize_on_arrival(config);
  } else if (!nvfp4_dispatch) {
    config.scheme = plain_scheme_of(config);
  }
}

// vLLM's low-latency class takes no scales by row; it looks at a1_gscale for nvfp4 only.
void check_low_latency_scales(const QuantConfig& quant) {
  if (quant.use_nvfp4_w4a4()) return;
  const TensorView scale = quant.a1_scale().has_value() ? quant.a1_scale() : quant.a2_scale();
  require(!scale.has_value() || scale.num_elements() == 1, Errc::kNotSupported,
          "{}: low_latency with a static scale of {} elements, must be 1: it takes no scales by "
          "token",
          kFunction, scale.num_elements());
}

// One number that holds for all tokens, as every sender needs it.
float only_value(const char* name, const TensorView& scale) {
  require_host(kFunction, {{name, scale}});
  require(scale.dtype() == DType::kF32 && scale.is_contiguous() && scale.num_elements() > 0,
          Errc::kInvalidArgument, "{}: {} is {}, must be f32, contiguous, not empty", kFunction,
          name, scale.describe());
  const float value = *scale.as<float>();
  check_scale_value(kFunction, name, value);
  for (std::int64_t i = 1; i < scale.num_elements(); ++i) {
    require(scale.as<float>()[i] == value, Errc::kNotSupported,
            "{}: {}[{}] is {} and {}[0] {}, must be equal: rows are quantized before they meet "
            "their expert; pass one scale",
            kFunction, name, i, scale.as<float>()[i], name, value);
  }
  return value;
}

// A static scale wins over per_act_token_quant of fp8; scales by block or by token of int8 are
// dynamic, and what is given is not looked at (vLLM's moe_kernel_quantize_input).
void apply_static_scale(PrepareFinalizeConfig& config, const QuantConfig& quant) {
  if (config.scheme.needs_tensor_scale()) {
    require(quant.a1_gscale().has_value(), Errc::kInvalidArgument,
            "{}: a1_gscale is absent, nvfp4 needs it: 448 * 6 / largest magnitude", kFunction);
    config.static_scale = only_value("a1_gscale", quant.a1_gscale());
    return;
  }
  const bool is_fp8_token = config.scheme == schemes::kFp8Token;
  if (!is_fp8_token && config.scheme.group != ScaleGroup::kTensor) return;
  require(quant.a1_scale().has_value() || !quant.a1_gscale().has_value(), Errc::kInvalidArgument,
          "{}: a1_gscale is given without a1_scale for {}, but it counts for nvfp4 only; pass the "
          "static scale as a1_scale, or leave both out",
          kFunction, name_of(config.scheme));
  if (!quant.a1_scale().has_value()) return;
  config.static_scale = only_value("a1_scale", quant.a1_scale());
  config.scheme.group = ScaleGroup::kTensor;
}

// The layout that reads fastest in the experts that the originals pair with the class: tiles for
// nvfp4 and mxfp8 where they asked for them, the aligned columns of DeepGEMM for packed UE8M0, the
// columns of DeepEP's low-latency kernels for the fp8 blocks that these cast.
ScaleLayout scale_layout_of(const PrepareFinalizeChoice& choice, const QuantConfig& quant,
                            const PrepareFinalizeOptions& options) {
  if (options.scale_layout.has_value()) return *options.scale_layout;
  const QuantScheme& scheme = choice.config.scheme;
  const bool can_be_tiles = scheme == schemes::kNvfp4 || scheme == schemes::kMxfp8;
  if (can_be_tiles && quant.is_scale_swizzled()) return ScaleLayout::kSwizzled;
  if (scheme.scale_format == ScaleFormat::kE8M0Packed) return ScaleLayout::kColumnMajorAligned;
  const bool are_columns = choice.kind == PrepareKind::kLowLatency && is_cast_by_deepep(quant);
  return are_columns ? ScaleLayout::kColumnMajor : ScaleLayout::kRowMajor;
}

// Sizes, and how activations are quantized; what is not quantized keeps their dtype both ways.
PrepareFinalizeConfig sizes_of(const MoEConfig& moe, const QuantConfig& quant,
                               const PrepareFinalizeOptions& options) {
  PrepareFinalizeConfig config;
  config.combine_scheme.dtype = moe.in_dtype;
  config.scheme = activation_scheme(quant);
  if (!config.scheme.is_quantized()) config.scheme = config.combine_scheme;
  config.num_experts = moe.num_experts;
  if (moe.ep_size() > 1) config.experts_per_rank = moe.experts_per_rank;
  config.num_topk = moe.num_topk;
  config.hidden = moe.hidden;
  config.max_tokens_per_rank = moe.max_num_tokens;
  config.reduce = options.reduce;
  config.num_micro_batches = options.num_micro_batches;
  return config;
}

void apply_placement(PrepareFinalizeConfig& config, std::span<const std::int64_t> table) {
  for (std::size_t i = 0; i < table.size(); ++i) {
    require(table[i] >= 0 && table[i] < config.num_experts, Errc::kInvalidArgument,
            "{}: global_to_physical[{}] is {}, must be from 0 to {}", kFunction, i, table[i],
            config.num_experts - 1);
    config.global_to_physical.push_back(static_cast<std::int32_t>(table[i]));
  }
  require(table.empty() ||
              config.global_to_physical.size() == static_cast<std::size_t>(config.num_experts),
          Errc::kInvalidArgument,
          "{}: global_to_physical has {} entries, must have one for each of {} experts", kFunction,
          table.size(), config.num_experts);
}

// vLLM pads mxfp8 rows to a multiple of it; here a received row has the size of a sent one.
void check_mx_alignment(const PrepareFinalizeConfig& config, const QuantConfig& quant) {
  const std::int32_t alignment = quant.mx_alignment();
  require(alignment == 0 || config.hidden % alignment == 0 || config.scheme != schemes::kMxfp8,
          Errc::kNotSupported,
          "{}: hidden is {}, must be a multiple of mx_alignment, {}: rows are not padded; round "
          "hidden up",
          kFunction, config.hidden, alignment);
}

PrepareFinalizeChoice finish(PrepareFinalizeChoice choice, const QuantConfig& quant,
                             const PrepareFinalizeOptions& options) {
  check_mx_alignment(choice.config, quant);
  if (options.wire_scheme.has_value()) choice.config.wire_scheme = options.wire_scheme;
  choice.config.defers_input_quant = options.defers_input_quant;
  apply_static_scale(choice.config, quant);
  choice.config.scale_layout = scale_layout_of(choice, quant, options);
  if (choice.kind == PrepareKind::kElasticPrefill) {
    choice.config.expert_alignment = options.expert_alignment;
  }
  apply_placement(choice.config, options.global_to_physical);
  return choice;
}

PrepareFinalizeChoice choose_local(const MoEConfig& moe, const QuantConfig& quant,
                                   const PrepareFinalizeOptions& options) {
  PrepareFinalizeChoice choice{PrepareKind::kLocal, sizes_of(moe, quant, options)};
  choice.config.ep_size = moe.ep_size();
  choice.config.ep_rank = moe.ep_rank();
  return finish(std::move(choice), quant, options);
}

// Every rank has a slice of each expert, so all tokens go to all ranks.
PrepareFinalizeChoice choose_sliced(const MoEConfig& moe, const QuantConfig& quant,
                                    const PrepareFinalizeOptions& options) {
  require(moe.pcp_size() == 1 && !moe.is_sequence_parallel(), Errc::kNotSupported,
          "{}: pcp_size {} and sp_size {} without expert parallelism, must be 1; set "
          "enable_expert_parallel",
          kFunction, moe.pcp_size(), moe.sp_size());
  PrepareFinalizeChoice choice{PrepareKind::kAllGather, sizes_of(moe, quant, options)};
  choice.config.slices_experts = true;
  return finish(std::move(choice), quant, options);
}

// With tensor parallelism inside the data-parallel ranks, who has a token's copies: over the
// data-parallel group alone each copy goes to the experts of its own tensor-parallel rank.
bool is_data_parallel_alone(const Group& group, const MoEConfig& moe,
                            const PrepareFinalizeChoice& choice) {
  return choice.kind == PrepareKind::kAllGather && !choice.config.slices_experts &&
         moe.pcp_size() == 1 && !moe.is_sequence_parallel() && moe.ep_size() > moe.dp_size() &&
         group.size() == moe.dp_size() && group.rank() == moe.dp_rank();
}

void check_group(const Group& group, const MoEConfig& moe, bool slices_experts) {
  const int size = slices_experts ? moe.dp_size() : moe.ep_size();
  const int rank = slices_experts ? moe.dp_rank() : moe.ep_rank();
  require(group.size() == size && group.rank() == rank, Errc::kInvalidArgument,
          "make_prepare_finalize: rank {} of a group of {}, but the configuration says rank {} of "
          "{} {}",
          group.rank(), group.size(), rank, size,
          slices_experts ? "with tokens of their own; without expert parallelism pass the "
                           "data-parallel group, see Group::split"
                         : "that hold the experts (all_gather also takes the data-parallel group)");
}

std::unique_ptr<PrepareFinalize> make_choice(const Group& group, const MoEConfig& moe,
                                             const PrepareFinalizeChoice& choice,
                                             const ExchangeOptions& exchange) {
  PrepareFinalizeConfig config = choice.config;
  if (is_data_parallel_alone(group, moe, choice)) {
    config.slices_experts = true;
    config.ep_size = moe.ep_size();
    config.ep_rank = moe.ep_rank();
  }
  if (choice.kind != PrepareKind::kLocal) check_group(group, moe, config.slices_experts);
  return make_prepare_finalize(choice.kind, group, config, exchange);
}

}  // namespace

PrepareFinalizeChoice choose_prepare_finalize(const MoEConfig& moe, const QuantConfig& quant,
                                              const PrepareFinalizeOptions& options) {
  if (!moe.use_all2all_kernels()) {
    const bool is_sliced = moe.dp_size() > 1 || moe.pcp_size() > 1 || moe.is_sequence_parallel();
    return is_sliced ? choose_sliced(moe, quant, options) : choose_local(moe, quant, options);
  }
  const All2AllBackend backend = moe.parallel.all2all_backend;
  const BackendRule rule = rule_of(backend);
  PrepareFinalizeChoice choice{rule.kind, sizes_of(moe, quant, options)};
  const bool is_v2 = backend == All2AllBackend::kDeepEpV2;
  if (is_v2 && !options.use_cudagraph) choice.kind = PrepareKind::kElasticPrefill;
  switch (rule.wire) {
    case WireRule::kAll: break;
    case WireRule::kBlocks: apply_blocks_rule(choice.config, quant, is_v2); break;
    case WireRule::kLowLatency:
      check_low_latency_scales(quant);
      apply_low_latency_rule(choice.config, quant, options.nvfp4_dispatch);
      break;
  }
  return finish(std::move(choice), quant, options);
}

std::unique_ptr<PrepareFinalize> make_prepare_finalize(const Group& group, const MoEConfig& moe,
                                                       const QuantConfig& quant,
                                                       const PrepareFinalizeOptions& options) {
  return make_choice(group, moe, choose_prepare_finalize(moe, quant, options), options.exchange);
}

}  // namespace switchyard
