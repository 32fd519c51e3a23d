// SPDX-License-Identifier: Apache-2.0
//
// plan_permute.cpp: the public permute functions that need only ids and counts.

#include <algorithm>

#include "core/bytes.h"
#include "core/format.h"
#include "core/require_device.h"
#include "plan/host_permute.h"
#include "plan/permute_views.h"

namespace switchyard {
namespace {

template <typename Id>
void map_ids(const IdTable& ids, const ExpertLookup& lookup, const IdTable& local) {
  auto* to = static_cast<Id*>(const_cast<void*>(local.data));
  for (std::int64_t t = 0; t < ids.num_tokens; ++t) {
    for (std::int64_t k = 0; k < ids.num_topk; ++k) {
      to[t * local.token_stride + k * local.choice_stride] =
          static_cast<Id>(lookup.local(ids.at(t, k)));
    }
  }
}

}  // namespace

BlockShape deep_gemm_block_shape(std::int32_t alignment) {
  require(alignment >= 1, Errc::kInvalidArgument,
          "deep_gemm_block_shape: alignment is {}, must be at least 1", alignment);
  return {alignment, alignment};
}

namespace host {

void count_expert_num_tokens(const TensorView& topk_ids, const TensorView& expert_num_tokens,
                             const TensorView& expert_map) {
  constexpr const char* kFunction = "count_expert_num_tokens";
  const IdTable ids = any_id_table(kFunction, topk_ids);
  const std::int64_t num_local = expert_num_tokens.num_elements();
  check_flat(kFunction, "expert_num_tokens", expert_num_tokens, DType::kI32, num_local);
  std::vector<std::int32_t> counts(checked_num_experts(kFunction, num_local));
  count_experts(kFunction, ids, expert_lookup(kFunction, expert_map), false, counts);
  std::copy(counts.begin(), counts.end(), expert_num_tokens.as<std::int32_t>());
}

void apply_expert_map(const TensorView& topk_ids, const TensorView& expert_map,
                      const TensorView& local_ids) {
  const auto [ids, lookup, local] = check_mapped_ids(topk_ids, expert_map, local_ids);
  check_ids("apply_expert_map", ids, lookup);
  return ids.is_64_bit ? map_ids<std::int64_t>(ids, lookup, local)
                       : map_ids<std::int32_t>(ids, lookup, local);
}

}  // namespace host

std::int64_t expert_num_tokens_round_up_and_sum(const TensorView& expert_num_tokens,
                                                std::int64_t alignment) {
  constexpr const char* kFunction = "expert_num_tokens_round_up_and_sum";
  require_host(kFunction, {{"expert_num_tokens", expert_num_tokens}});
  const std::int64_t num_local = expert_num_tokens.num_elements();
  check_flat(kFunction, "expert_num_tokens", expert_num_tokens, DType::kI32, num_local);
  return start_experts(kFunction,
                       {expert_num_tokens.as<std::int32_t>(), static_cast<std::size_t>(num_local)},
                       alignment, {});
}

std::int64_t compute_aligned_m(std::int64_t num_tokens, std::int64_t num_topk,
                               std::int64_t num_local_experts, std::int64_t alignment,
                               const TensorView& expert_num_tokens) {
  constexpr const char* kFunction = "compute_aligned_m";
  require(num_tokens >= 0 && num_topk >= 0 && num_local_experts >= 0, Errc::kInvalidArgument,
          "compute_aligned_m: {} tokens, {} choices, {} local experts, none may be negative",
          num_tokens, num_topk, num_local_experts);
  if (expert_num_tokens.has_value()) {
    check_flat(kFunction, "expert_num_tokens", expert_num_tokens, DType::kI32, num_local_experts);
    return expert_num_tokens_round_up_and_sum(expert_num_tokens, alignment);
  }
  checked_align_up(kFunction, 0, alignment);  // rejects a bad alignment
  const std::int64_t num_ids = checked_mul(num_tokens, num_topk);
  const std::int64_t gaps = checked_mul(std::min(num_ids, num_local_experts), alignment - 1);
  return checked_align_up(kFunction, checked_add(num_ids, gaps), alignment);
}

PermutePlan plan_permute(const TensorView& topk_ids, std::int32_t num_local_experts,
                         const PermuteOptions& options, std::int64_t max_rows) {
  constexpr const char* kFunction = "plan_permute";
  require_host(kFunction, {{"topk_ids", topk_ids},
                           {"options.expert_map", options.expert_map},
                           {"options.expert_num_tokens", options.expert_num_tokens}});
  return build_plan(kFunction, id_table(kFunction, topk_ids), num_local_experts, options, max_rows);
}

}  // namespace switchyard
