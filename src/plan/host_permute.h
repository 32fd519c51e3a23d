// SPDX-License-Identifier: Apache-2.0
//
// host_permute.h: calls of permute.h for CPUs, without the choice of a device. See there for what
// they do.
#pragma once

#include "switchyard/permute.h"

namespace switchyard::host {

void count_expert_num_tokens(const TensorView& topk_ids, const TensorView& expert_num_tokens,
                             const TensorView& expert_map);
void apply_expert_map(const TensorView& topk_ids, const TensorView& expert_map,
                      const TensorView& local_ids);

// In cpu/.
void ep_scatter(const TensorView& x, const TensorView& scales, const TensorView& topk_ids,
                const PermuteOptions& options, const ScatterOutputs& outputs);
void plan_permute(const TensorView& topk_ids, const PermuteOptions& options,
                  const ScatterOutputs& outputs);
/// Refuses what is neither a row nor -1 for none. Errors: kInvalidArgument.
void check_inv_perm(const TensorView& inv_perm);

void ep_gather(const TensorView& expert_output, const TensorView& topk_ids,
               const TensorView& topk_weights, const TensorView& inv_perm,
               const TensorView& expert_map, const TensorView& output);

}  // namespace switchyard::host
