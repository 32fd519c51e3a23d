// SPDX-License-Identifier: Apache-2.0
//
// config_fields.h: the fields of a layer's sizes, of how ranks share it and of its quantization.
#pragma once

#include "switchyard/moe_config.h"
#include "switchyard/parallel_config.h"
#include "switchyard/quant_config_options.h"

#include "core/fields.h"

namespace switchyard {

template <>
inline constexpr auto kFields<ParallelOptions> = std::tuple{
    field("tp_size", &ParallelOptions::tp_size, "Tensor parallel."),
    field("tp_rank", &ParallelOptions::tp_rank, "Read where tp_size is above 1."),
    field("dp_size", &ParallelOptions::dp_size, "Data parallel."),
    field("dp_rank", &ParallelOptions::dp_rank, "Read where dp_size is above 1."),
    field("pcp_size", &ParallelOptions::pcp_size, "Prefill context parallel."),
    field("pcp_rank", &ParallelOptions::pcp_rank, "Read where pcp_size is above 1."),
    field("sp_size", &ParallelOptions::sp_size, "Sequence parallel."),
    field("enable_expert_parallel", &ParallelOptions::enable_expert_parallel,
          "Ranks hold whole experts, not slices."),
    field("enable_eplb", &ParallelOptions::enable_eplb, "Experts are placed by load."),
    field("all2all_backend", &ParallelOptions::all2all_backend,
          "None: the setting SWITCHYARD_ALL2ALL_BACKEND."),
};

template <>
inline constexpr auto kFields<ParallelConfig> = std::tuple{
    field("tp_size", &ParallelConfig::tp_size, "Tensor parallel; 1 with expert parallelism."),
    field("tp_rank", &ParallelConfig::tp_rank, "This rank's number among them."),
    field("pcp_size", &ParallelConfig::pcp_size, "Prefill context parallel."),
    field("pcp_rank", &ParallelConfig::pcp_rank, "This rank's number among them."),
    field("dp_size", &ParallelConfig::dp_size, "Data parallel."),
    field("dp_rank", &ParallelConfig::dp_rank, "This rank's number among them."),
    field("ep_size", &ParallelConfig::ep_size, "Ranks that hold the experts."),
    field("ep_rank", &ParallelConfig::ep_rank, "This rank's number among them."),
    field("sp_size", &ParallelConfig::sp_size, "Sequence parallel."),
    field("use_ep", &ParallelConfig::use_ep, "Ranks hold whole experts, not slices."),
    field("all2all_backend", &ParallelConfig::all2all_backend, "What moves tokens."),
    field("enable_eplb", &ParallelConfig::enable_eplb, "Experts are placed by load."),
};

template <>
inline constexpr auto kFields<MoEConfig> = std::tuple{
    field("num_experts", &MoEConfig::num_experts, "E, physical: redundant experts included."),
    field("num_topk", &MoEConfig::num_topk, "K, experts per token."),
    field("hidden", &MoEConfig::hidden, "H, padding included."),
    field("parallel", &MoEConfig::parallel, "How ranks share the layer."),
    field("in_dtype", &MoEConfig::in_dtype, "Of the layer's input."),
    field("max_num_tokens", &MoEConfig::max_num_tokens, "Per rank and call; equal on all ranks."),
    field("has_bias", &MoEConfig::has_bias, "Whether experts add a bias."),
    field("intermediate", &MoEConfig::intermediate, "Of the whole layer; 0: unknown."),
    field("activation", &MoEConfig::activation, "Between the two GEMMs."),
    field("num_local_experts", &MoEConfig::num_local_experts, "None: by experts_per_rank."),
    field("num_logical_experts", &MoEConfig::num_logical_experts, "None: num_experts."),
    field("router_logits_dtype", &MoEConfig::router_logits_dtype, "None: in_dtype."),
    field("hidden_unpadded", &MoEConfig::hidden_unpadded, "None: hidden."),
    field("intermediate_per_partition_unpadded", &MoEConfig::intermediate_per_partition_unpadded,
          "None: intermediate / tp_size."),
    field("experts_per_rank", &MoEConfig::experts_per_rank,
          "How many experts each of the ep_size ranks holds; empty: equal numbers."),
};

template <>
inline constexpr auto kFields<QuantExtras> = std::tuple{
    field("is_scale_swizzled", &QuantExtras::is_scale_swizzled,
          "Scales of nvfp4 and mxfp8 are tiles, not rows."),
    field("gemm1_alpha", &QuantExtras::gemm1_alpha, "Of the activation of GPT-OSS."),
    field("gemm1_beta", &QuantExtras::gemm1_beta, "Likewise."),
    field("gemm1_clamp_limit", &QuantExtras::gemm1_clamp_limit, "Likewise."),
    field("mx_alignment", &QuantExtras::mx_alignment,
          "mxfp8: pads H to a multiple of it; 0: no padding."),
    field("scale_format", &QuantExtras::scale_format, "Of fp8 block scales of activations."),
};

/// But for extras, a struct of its own.
template <>
inline constexpr auto kFields<QuantOptions> = std::tuple{
    field("quant_dtype", &QuantOptions::quant_dtype, "Of activations."),
    field("weight_dtype", &QuantOptions::weight_dtype, "None: quant_dtype."),
    field("per_act_token_quant", &QuantOptions::per_act_token_quant, "One scale per row."),
    field("per_out_ch_quant", &QuantOptions::per_out_ch_quant,
          "Weights: one scale per output channel."),
    field("block_shape", &QuantOptions::block_shape, "Rows and columns that share a scale."),
    field("w1_scale", &QuantOptions::w1_scale, "Of the first GEMM's weights."),
    field("w2_scale", &QuantOptions::w2_scale, "Of the second GEMM's weights."),
    field("a1_scale", &QuantOptions::a1_scale, "Static, of the first GEMM's input."),
    field("a2_scale", &QuantOptions::a2_scale, "Static, of the second GEMM's input."),
    field("g1_alphas", &QuantOptions::g1_alphas, "Of the first GEMM's output."),
    field("g2_alphas", &QuantOptions::g2_alphas, "Of the second GEMM's output."),
    field("a1_gscale", &QuantOptions::a1_gscale, "1 / a1_scale."),
    field("a2_gscale", &QuantOptions::a2_gscale, "1 / a2_scale."),
    field("w1_bias", &QuantOptions::w1_bias, "Added to the first GEMM's output."),
    field("w2_bias", &QuantOptions::w2_bias, "Added to the second GEMM's output."),
    field("w1_zp", &QuantOptions::w1_zp, "Zero points of integer weights."),
    field("w2_zp", &QuantOptions::w2_zp, "Likewise."),
    field("weight_bits", &QuantOptions::weight_bits, "gptq_marlin: 4 or 8."),
    field("group_size", &QuantOptions::group_size,
          "gptq_marlin: inputs that share a scale; -1: all."),
};

}  // namespace switchyard
