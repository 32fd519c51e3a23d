// SPDX-License-Identifier: Apache-2.0
//
// c/kernel.h: experts, ours or the caller's, and the whole layer: prepare -> experts -> finalize.
// See router.h, experts.h, experts_factory.h and modular_kernel.h.
//
// Letters: T tokens, E experts, K experts chosen per token, L local experts, H elements per row,
// I intermediate elements, N rows of the receive buffer.
#pragma once

#include "switchyard/c/prepare.h"

#ifdef __cplusplus
extern "C" {
#endif

/// RouterConfig.
typedef struct sy_router_config {
  size_t struct_size;
  int32_t num_experts;          ///< E
  int32_t num_topk;             ///< K
  const char* scoring;          ///< "softmax" (NULL), "sigmoid" or "sparse_mixer"
  const char* group_selection;  ///< "none" (NULL), "max" or "top2_sum"
  int32_t num_groups;           ///< 0: 1
  int32_t topk_groups;          ///< 0: 1
  float routed_scaling_factor;  ///< 0: 1
  bool norm_topk_prob;          ///< divides the chosen weights by their sum
  bool bias_on_logits;          ///< adds `bias` to the logits, so it counts in the weights too
  float norm_min;               ///< norm_topk_prob divides by no less
  float jitter;                 ///< of sparse_mixer
} sy_router_config;

/// router_logits: hidden [T, H] x gate [E, H] to logits [T, E] f32, on the host.
SY_API sy_status sy_router_logits(const sy_tensor* hidden, const sy_tensor* gate,
                                  const sy_tensor* logits);
/// select_experts: logits [T, E] to topk_ids [T, K] and topk_weights [T, K] f32, on the host.
/// `bias`: [E] f32 or NULL.
SY_API sy_status sy_select_experts(const sy_router_config* config, const sy_tensor* logits,
                                   const sy_tensor* bias, const sy_tensor* topk_ids,
                                   const sy_tensor* topk_weights);

typedef struct sy_experts sy_experts;  ///< the expert MLP

/// The function between the two matrices of an expert.
typedef struct sy_activation {
  size_t struct_size;
  const char* kind;  ///< "silu_mul" (NULL) or "clamped_swiglu"
  float alpha;       ///< of clamped_swiglu, as beta and limit
  float beta;        ///< likewise
  float limit;       ///< 0: none
} sy_activation;

/// "exact", on CPUs "onednn", on GPUs "cublas" and "cutlass": w1 [L, 2 I, H] (gate, then up), w2
/// [L, H, I], in host memory, read once. `quant` (or NULL) has scales, alphas and biases; its
/// a2_scale, for nvfp4 a2_gscale, is ExpertOptions::intermediate_scale. `activation` may be NULL.
/// Errors: those of make_experts in experts_factory.h.
SY_API sy_status sy_experts_create(const char* name, const sy_tensor* w1, const sy_tensor* w2,
                                   sy_quant_config* quant, const sy_activation* activation,
                                   sy_device device, sy_experts** experts);

/// Rows grouped by local expert, as sy_received and sy_prepared have them.
typedef struct sy_expert_rows {
  size_t struct_size;
  const sy_tensor* rows;          ///< [N, H] or [L, C, H]
  const sy_tensor* scales;        ///< NULL without scales
  const sy_tensor* tensor_scale;  ///< of nvfp4, or NULL
  const sy_tensor* first_row;     ///< [L] i64
  const sy_tensor* num_rows;      ///< [L] i32
  const char* scheme;             ///< how rows are quantized; NULL: "none"
  const char* scale_layout;       ///< NULL: "row_major"
} sy_expert_rows;

/// The caller's own experts. They work on `device` and may call the library, but not with a handle
/// of the call that is running.
typedef struct sy_expert_functions {
  size_t struct_size;
  void* user;        ///< handed to the functions
  const char* name;  ///< for messages and reports
  sy_device device;  ///< where the rows are, and apply works
  /// Writes `output`, bf16 of the shape of the rows, at the places of the valid rows, in `stream`.
  /// Any status but SY_OK ends the call with it; its sentence is sy_last_error() if the library
  /// gave that status to this thread last.
  sy_status (*apply)(void* user, const sy_expert_rows* rows, const sy_tensor* output,
                     void* workspace, size_t workspace_bytes, void* stream);
  /// Scratch that `apply` wants for rows of this shape and dtype; NULL: none.
  size_t (*workspace_bytes)(void* user, const sy_tensor* rows);
  /// When the experts are destroyed; NULL: nothing.
  void (*release)(void* user);
  bool is_batch_invariant;          ///< a row's result never depends on the other rows
  bool expects_unquantized_inputs;  ///< rows arrive as the model has them
  bool is_capturable;               ///< apply may be captured in a CUDA graph
} sy_expert_functions;
/// Experts that call these functions, which are copied.
SY_API sy_status sy_experts_from_functions(const sy_expert_functions* functions,
                                           sy_experts** experts);

/// Scratch that sy_experts_apply needs for rows of this shape and dtype.
SY_API sy_status sy_experts_workspace_bytes(sy_experts* experts, const sy_tensor* rows,
                                            size_t* bytes);
/// output: bf16 of the shape of the rows. `workspace` is memory of the device.
SY_API sy_status sy_experts_apply(sy_experts* experts, const sy_expert_rows* rows,
                                  const sy_tensor* output, void* workspace, size_t workspace_bytes,
                                  void* stream);
/// Frees them.
SY_API sy_status sy_experts_destroy(sy_experts* experts);

typedef struct sy_kernel sy_kernel;  ///< a whole layer

/// An expert that every token visits on its own rank.
typedef struct sy_shared_expert {
  size_t struct_size;
  sy_experts* experts;    ///< one expert; the kernel takes it
  const sy_tensor* gate;  ///< [H] or [1, H]: sigmoid(x . gate); NULL: 1. Kept by the caller
  bool no_overlap;        ///< runs before prepare, not between the phases of combine
} sy_shared_expert;

/// Takes prepare_finalize and experts, which no other call may be using. When it fails their
/// handles may or may not have ended: destroy them, which does no harm. `shared` may be NULL.
/// Collective.
SY_API sy_status sy_kernel_create(sy_prepare_finalize* prepare_finalize, sy_experts* experts,
                                  const sy_shared_expert* shared, sy_kernel** kernel);

/// What a kernel says of itself.
typedef struct sy_kernel_info {
  size_t struct_size;
  sy_device device;           ///< of all its parts
  size_t workspace_bytes;     ///< rows, expert output and scratch of the micro-batches
  int32_t num_micro_batches;  ///< that may be open at once
  bool is_capturable;         ///< sy_kernel_apply may be captured in a CUDA graph
} sy_kernel_info;
/// Fills `info`.
SY_API sy_status sy_kernel_describe(sy_kernel* kernel, sy_kernel_info* info);

/// output [T, H] bf16: the layer. Collective.
SY_API sy_status sy_kernel_apply(sy_kernel* kernel, const sy_prepare_arguments* arguments,
                                 const sy_tensor* output, void* stream);
/// The same in micro-batches that overlap; num_micro_batches 0: as many as there are. Collective.
/// Functions of sy_expert_functions are then also called by threads of the library.
SY_API sy_status sy_kernel_apply_overlapped(sy_kernel* kernel,
                                            const sy_prepare_arguments* arguments,
                                            const sy_tensor* output, int32_t num_micro_batches,
                                            void* stream);
/// See sy_exchange_check.
SY_API sy_status sy_kernel_check(sy_kernel* kernel);
/// See sy_exchange_close.
SY_API sy_status sy_kernel_close(sy_kernel* kernel, bool waits_for_peers);
/// Frees it. Closes it first, if nobody did.
SY_API sy_status sy_kernel_destroy(sy_kernel* kernel);

#ifdef __cplusplus
}
#endif
