// SPDX-License-Identifier: Apache-2.0
//
// c/permute.h: rows grouped by expert for contiguous grouped GEMMs, and weighted sums per token.
// See permute.h and weight_and_reduce.h.
//
// Letters: T tokens, K experts chosen per token, H elements per row, S scales per row, L local
// experts, E global experts, M rows of the permuted buffer, padding included.
//
// `num_errors`: [1] i32 on the device, or NULL: counts what a GPU's values are refused for.
#pragma once

#include "switchyard/c/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/// Counts the ids of each local expert into expert_num_tokens [L] i32. `expert_map`: i32 [E] or
/// NULL.
SY_API sy_status sy_count_expert_tokens(const sy_tensor* topk_ids,
                                        const sy_tensor* expert_num_tokens,
                                        const sy_tensor* expert_map, void* stream,
                                        const sy_tensor* num_errors);
/// compute_aligned_m: M for any routing, or exactly with `expert_num_tokens` [L] i32 on the host.
SY_API sy_status sy_aligned_rows(int64_t num_tokens, int64_t num_topk, int64_t num_local_experts,
                                 int64_t alignment, const sy_tensor* expert_num_tokens,
                                 int64_t* num_rows);

/// PermuteOptions.
typedef struct sy_permute_options {
  size_t struct_size;
  const sy_tensor* expert_map;         ///< i32 [E], or NULL: ids are local
  const sy_tensor* expert_num_tokens;  ///< i32 [L], or NULL; must equal the counts of the ids
  int64_t alignment;                   ///< 0: 128
  const char*
      scale_layout;  ///< sy_permute: "row_major" (NULL), "column_major", "column_major_aligned"
  const char* compat_padding;  ///< m_indices of padding rows: "none" (NULL), -1; "owner", as vLLM's
} sy_permute_options;

/// ScatterOutputs: the caller's memory. NULL where the text says so.
typedef struct sy_scatter_outputs {
  size_t struct_size;
  const sy_tensor* x;                  ///< [M, H]
  const sy_tensor* scales;             ///< [M, S], or NULL
  const sy_tensor* m_indices;          ///< i32 [M]: local expert of each row, -1 without a token
  const sy_tensor* inv_perm;           ///< i32 [T, K]: row of each choice, -1 for none
  const sy_tensor* first_row;          ///< i64 [L]
  const sy_tensor* expert_num_tokens;  ///< i32 [L], or NULL
  const sy_tensor* num_rows;           ///< i64 [1]: rows that the ids need; or NULL
} sy_scatter_outputs;

/// ep_scatter: copies each row x [T, H], with its scales, to the experts it is routed to. GPUs need
/// M of sy_aligned_rows and a workspace; such a call may be captured in a CUDA graph.
SY_API sy_status sy_scatter(const sy_tensor* x, const sy_tensor* scales, const sy_tensor* topk_ids,
                            const sy_permute_options* options, const sy_scatter_outputs* outputs,
                            void* workspace, size_t workspace_bytes, void* stream,
                            const sy_tensor* num_errors);
/// ep_scatter_workspace_bytes: for GPUs.
SY_API sy_status sy_scatter_workspace_bytes(int64_t num_tokens, int64_t num_topk,
                                            int64_t num_local_experts, size_t* bytes);
/// ep_gather: the weighted sum of each token's rows. `topk_weights` NULL: 1.
SY_API sy_status sy_gather(const sy_tensor* expert_output, const sy_tensor* topk_ids,
                           const sy_tensor* topk_weights, const sy_tensor* inv_perm,
                           const sy_tensor* expert_map, const sy_tensor* output, void* stream,
                           const sy_tensor* num_errors);

/// A permuted batch in memory of its own.
typedef struct sy_permuted sy_permuted;

/// sy_scatter into memory of `allocator`, workspace included: M is exact on the host and that of
/// sy_aligned_rows on a GPU.
SY_API sy_status sy_permute(const sy_tensor* x, const sy_tensor* scales, const sy_tensor* topk_ids,
                            int32_t num_local_experts, const sy_permute_options* options,
                            const sy_allocator* allocator, void* stream, sy_permuted** permuted);
/// The tensors, as long as the batch.
SY_API sy_status sy_permuted_tensors(sy_permuted* permuted, sy_scatter_outputs* tensors);
/// Frees it.
SY_API sy_status sy_permuted_destroy(sy_permuted* permuted);
/// unpermute_and_reduce: sy_gather by inv_perm alone.
SY_API sy_status sy_unpermute_and_reduce(const sy_tensor* expert_output, const sy_tensor* inv_perm,
                                         const sy_tensor* topk_weights, const sy_tensor* output,
                                         void* stream, const sy_tensor* num_errors);

/// A policy of weight_and_reduce.h with its arguments.
typedef struct sy_weight_and_reduce_arguments {
  size_t struct_size;
  const char* kind;                   ///< "no_op", "contiguous" or "naive_batched"
  const sy_tensor* expert_output;     ///< shape by kind
  const sy_tensor* topk_weights;      ///< [T, K] f32
  const sy_tensor* topk_ids;          ///< [T, K] i32 or i64
  const sy_tensor* expert_map;        ///< i32 [E] or NULL
  int32_t rank;                       ///< naive_batched: local expert e is expert rank * L + e
  bool skips_padding;                 ///< contiguous: ignores choices without a local expert
  bool apply_router_weight_on_input;  ///< the weights were applied before the experts
} sy_weight_and_reduce_arguments;
/// output [T, H], written.
SY_API sy_status sy_weight_and_reduce(const sy_weight_and_reduce_arguments* arguments,
                                      const sy_tensor* output, void* workspace,
                                      size_t workspace_bytes, void* stream,
                                      const sy_tensor* num_errors);
/// For GPUs; 0 on the host.
SY_API sy_status sy_weight_and_reduce_workspace_bytes(const char* kind, int64_t num_tokens,
                                                      int64_t num_topk, int64_t num_local_experts,
                                                      size_t* bytes);

#ifdef __cplusplus
}
#endif
