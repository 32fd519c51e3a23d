// SPDX-License-Identifier: Apache-2.0
//
// exchange_fields.h: the fields of an exchange's options.
#pragma once

#include "switchyard/exchange_config.h"
#include "switchyard/exchange_types.h"

#include "core/fields.h"

namespace switchyard {

template <>
inline constexpr auto kFields<ExchangeConfig> = std::tuple{
    agreed("num_experts", &ExchangeConfig::num_experts,
           "E, of all ranks; need not be a multiple of their number."),
    agreed("experts_per_rank", &ExchangeConfig::experts_per_rank,
           "How many experts each rank holds, in order, or 0; empty: equal numbers."),
    agreed("num_topk", &ExchangeConfig::num_topk, "K, experts per token."),
    agreed("hidden", &ExchangeConfig::hidden, "H, elements per token."),
    agreed("max_tokens_per_rank", &ExchangeConfig::max_tokens_per_rank,
           "Upper bound on T, over all ranks."),
    agreed("layout", &ExchangeConfig::layout, "How received rows are arranged."),
    agreed("slices_experts", &ExchangeConfig::slices_experts,
           "all_gather: every rank holds a slice of every expert."),
    agreed("scheme", &ExchangeConfig::scheme,
           "Format of rows on the wire; the sender quantizes them."),
    agreed("scale_layout", &ExchangeConfig::scale_layout, "Of received scales."),
    agreed("payload_bytes", &ExchangeConfig::payload_bytes,
           "Bytes per row of each further payload."),
    agreed("reduce", &ExchangeConfig::reduce, "Where sums are computed."),
    agreed("combine_scheme", &ExchangeConfig::combine_scheme, "Format of returned rows."),
    agreed("sends_weights", &ExchangeConfig::sends_weights,
           "Whether topk_weights travel with dispatch."),
    agreed("expert_alignment", &ExchangeConfig::expert_alignment,
           "expanded: each expert starts at a multiple of it."),
    agreed("worst_case_rows", &ExchangeConfig::worst_case_rows,
           "Received tensors always have their maximum size."),
    agreed("zero_padding", &ExchangeConfig::zero_padding,
           "expanded: zero the rows and scales that no token fills."),
    agreed("capacity", &ExchangeConfig::capacity,
           "Rows that an expert accepts; 0: as many as can arrive."),
    agreed("overflow", &ExchangeConfig::overflow, "What happens to rows above capacity."),
    agreed("max_in_flight", &ExchangeConfig::max_in_flight, "Handles that may be alive at once."),
};

template <>
inline constexpr auto kFields<ExchangeOptions> = std::tuple{
    field("device", &ExchangeOptions::device, "Where tokens, received rows and results lie."),
    field("timeout_ms", &ExchangeOptions::timeout_ms,
          "How long a kernel waits for a peer; 0: as long as the group."),
    field("num_ctas", &ExchangeOptions::num_ctas,
          "GPUs: upper bound on the CTAs of a kernel; 0: as many as fit."),
    field("programmatic_launch", &ExchangeOptions::programmatic_launch,
          "GPUs: kernels may be launched before the kernel ahead of them has ended."),
    field("heap", &ExchangeOptions::heap,
          "GPUs: \"auto\", \"same_process\", \"vmm\", \"ipc\" or \"nccl\"."),
    field("exact_memory", &ExchangeOptions::exact_memory,
          "GPUs: dispatches take memory for as many rows as came at most."),
    field("keeps_routing", &ExchangeOptions::keeps_routing,
          "GPUs: keep the routing for dispatch_again and reopen."),
    agreed("host_capacity", &ExchangeOptions::host_capacity,
           "GPUs of several hosts: tokens of a rank that may go to one other host; 0: all."),
    agreed("exact_messages", &ExchangeOptions::exact_messages,
           "GPUs of several hosts: messages have the size of what crosses; waits for counts."),
};

/// Those that are not tensors.
template <>
inline constexpr auto kFields<DispatchOptions> = std::tuple{
    field("max_tokens", &DispatchOptions::max_tokens,
          "Upper bound on T over all ranks for this call; 0: the configured one."),
    field("routing_only", &DispatchOptions::routing_only, "Only routing and weights travel."),
    field("host_counts", &DispatchOptions::host_counts,
          "GPUs: wait for the counts, so that tensors have their true size."),
    field("slot", &DispatchOptions::slot, "In-flight slot of the handle; -1: the first free one."),
    field("copies_inputs", &DispatchOptions::copies_inputs,
          "CPUs: inputs of the send phase may be overwritten once it has returned."),
};

}  // namespace switchyard
