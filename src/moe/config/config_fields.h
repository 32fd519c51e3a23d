// SPDX-License-Identifier: Apache-2.0
//
// config_fields.h: the fields of a layer's sizes and of how ranks share it.
#pragma once

#include "switchyard/moe_config.h"
#include "switchyard/parallel_config.h"

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

}  // namespace switchyard
