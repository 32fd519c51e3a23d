// SPDX-License-Identifier: Apache-2.0
//
// permute_views.h: checks the caller's tensors and converts them to the types of plan/permute.h.
// Messages begin with `function`; errors are kInvalidArgument unless stated otherwise.
#pragma once

#include "switchyard/permute.h"

#include "plan/permute.h"

namespace switchyard {

/// topk_ids must be i32 or i64 [T, K].
IdTable id_table(const char* function, const TensorView& topk_ids);

/// Ids of any shape. Two-dimensional ids are used as they are; others must be contiguous and count
/// as one choice per token.
IdTable any_id_table(const char* function, const TensorView& topk_ids);

/// The tensors of apply_expert_map.
struct MappedIds {
  IdTable ids;
  ExpertLookup lookup;
  IdTable local;
};
MappedIds check_mapped_ids(const TensorView& topk_ids, const TensorView& expert_map,
                           const TensorView& local_ids);

/// expert_map must be i32 [E], or absent.
ExpertLookup expert_lookup(const char* function, const TensorView& expert_map);

/// Requires a contiguous tensor with this dtype and number of elements.
void check_flat(const char* function, const char* name, const TensorView& tensor, DType dtype,
                std::int64_t num_elements);

/// Requires a number of local experts from 0 to 65535, and returns it.
std::size_t checked_num_experts(const char* function, std::int64_t num_local_experts);

/// Builds the plan of plan_permute, permute and ep_scatter on the host. Errors: also
/// kWorkspaceTooSmall when `max_rows` is too small.
PermutePlan build_plan(const char* function, const IdTable& ids, std::int64_t num_local_experts,
                       const PermuteOptions& options, std::int64_t max_rows);

}  // namespace switchyard
