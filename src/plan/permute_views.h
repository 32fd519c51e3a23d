// SPDX-License-Identifier: Apache-2.0
//
// permute_views.h: from the tensors of a caller to what plan/permute.h computes with. Messages
// start with `function`; all errors are kInvalidArgument.
#pragma once

#include "switchyard/permute.h"

#include "plan/permute.h"

namespace switchyard {

/// i32 or i64 [T, K].
IdTable id_table(const char* function, const TensorView& topk_ids);

/// Ids of any shape: two-dimensional ones as they are, others, contiguous, one choice a token.
IdTable any_id_table(const char* function, const TensorView& topk_ids);

/// The tensors of apply_expert_map.
struct MappedIds {
  IdTable ids;
  ExpertLookup lookup;
  IdTable local;
};
MappedIds check_mapped_ids(const TensorView& topk_ids, const TensorView& expert_map,
                           const TensorView& local_ids);

/// i32 [E], or absent.
ExpertLookup expert_lookup(const char* function, const TensorView& expert_map);

/// A contiguous tensor with this dtype and number of elements.
void check_flat(const char* function, const char* name, const TensorView& tensor, DType dtype,
                std::int64_t num_elements);

/// A number of local experts from 0 to 65535, as a size.
std::size_t checked_num_experts(const char* function, std::int64_t num_local_experts);

/// The definition behind plan_permute.
PermutePlan build_plan(const char* function, const IdTable& ids, std::int64_t num_local_experts,
                       const PermuteOptions& options, std::int64_t max_rows);

}  // namespace switchyard
