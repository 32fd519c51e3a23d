// SPDX-License-Identifier: Apache-2.0
//
// prepare_fields.h: the fields of prepare/finalize objects and of their calls.
#pragma once

#include "switchyard/prepare_finalize.h"
#include "switchyard/prepare_finalize_factory.h"

#include "core/fields.h"

namespace switchyard {

template <>
inline constexpr auto kFields<PrepareFinalizeConfig> = std::tuple{
    field("num_experts", &PrepareFinalizeConfig::num_experts, "E, of all ranks."),
    field("num_topk", &PrepareFinalizeConfig::num_topk, "K, experts per token."),
    field("hidden", &PrepareFinalizeConfig::hidden, "H, elements per token."),
    field("max_tokens_per_rank", &PrepareFinalizeConfig::max_tokens_per_rank,
          "Upper bound on T, over all ranks."),
    field("scheme", &PrepareFinalizeConfig::scheme, "How the experts get their rows."),
    field("wire_scheme", &PrepareFinalizeConfig::wire_scheme,
          "How rows travel; None: as scheme where a sender can apply it."),
    field("static_scale", &PrepareFinalizeConfig::static_scale, "a1_scale, or a1_gscale of nvfp4."),
    field("scale_layout", &PrepareFinalizeConfig::scale_layout, "Of what experts get."),
    field("reduce", &PrepareFinalizeConfig::reduce, "None: the default of the class."),
    field("combine_scheme", &PrepareFinalizeConfig::combine_scheme, "Of rows on the way back."),
    field("expert_alignment", &PrepareFinalizeConfig::expert_alignment, "elastic_prefill."),
    field("num_micro_batches", &PrepareFinalizeConfig::num_micro_batches,
          "Handles that may be open at once; 0: as the mirrored class."),
    field("global_to_physical", &PrepareFinalizeConfig::global_to_physical,
          "[E] physical id of each expert id; empty: ids are physical."),
    field("slices_experts", &PrepareFinalizeConfig::slices_experts,
          "all_gather: every rank holds a slice of every expert."),
    field("ep_size", &PrepareFinalizeConfig::ep_size, "local, and with slices_experts."),
    field("ep_rank", &PrepareFinalizeConfig::ep_rank, "local, and with slices_experts."),
    field("defers_input_quant", &PrepareFinalizeConfig::defers_input_quant,
          "Takes what prepare's defer_input_quant needs where rows travel quantized."),
    field("experts_per_rank", &PrepareFinalizeConfig::experts_per_rank,
          "How many experts each rank holds, in order, or 0; empty: equal numbers."),
};

/// But for global_to_physical, a span, and exchange, a struct of its own.
template <>
inline constexpr auto kFields<PrepareFinalizeOptions> = std::tuple{
    field("use_cudagraph", &PrepareFinalizeOptions::use_cudagraph,
          "deepep_v2: fixed shapes, for CUDA graphs."),
    field("nvfp4_dispatch", &PrepareFinalizeOptions::nvfp4_dispatch,
          "deepep_low_latency and nixl_ep: rows travel as nvfp4."),
    field("reduce", &PrepareFinalizeOptions::reduce, "None: the default of the class."),
    field("scale_layout", &PrepareFinalizeOptions::scale_layout,
          "Of what experts get; None: what their kernels read."),
    field("expert_alignment", &PrepareFinalizeOptions::expert_alignment,
          "elastic_prefill: each expert starts at a multiple of it."),
    field("num_micro_batches", &PrepareFinalizeOptions::num_micro_batches,
          "0: as the mirrored class."),
    field("wire_scheme", &PrepareFinalizeOptions::wire_scheme,
          "How rows travel; None: as the backend's do."),
    field("defers_input_quant", &PrepareFinalizeOptions::defers_input_quant,
          "As in PrepareFinalizeConfig."),
};

/// Those that are not tensors.
template <>
inline constexpr auto kFields<PrepareArguments> = std::tuple{
    field("apply_router_weight_on_input", &PrepareArguments::apply_router_weight_on_input,
          "Rows are multiplied by their weight first; K is 1."),
    field("micro_batch", &PrepareArguments::micro_batch, "From 0."),
    field("defer_input_quant", &PrepareArguments::defer_input_quant,
          "Rows arrive unquantized; the experts quantize them."),
    field("weighs_in_place", &PrepareArguments::weighs_in_place,
          "The weighted rows replace those of hidden."),
    field("max_tokens", &PrepareArguments::max_tokens,
          "Upper bound on T over all ranks for this call; 0: the configured one."),
    field("host_counts", &PrepareArguments::host_counts,
          "GPUs: wait for the counts, so that tensors have their true size."),
    field("copies_inputs", &PrepareArguments::copies_inputs,
          "CPUs: inputs may be overwritten once the send has returned."),
};

}  // namespace switchyard
