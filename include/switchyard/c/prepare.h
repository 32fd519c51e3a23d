// SPDX-License-Identifier: Apache-2.0
//
// c/prepare.h: quantize + dispatch before the experts, combine + weigh + reduce after them, by the
// class that a configuration chooses. See prepare_finalize_factory.h and prepare_finalize.h.
//
// Letters: T tokens on this rank, K experts chosen per token, H elements per token, N rows of the
// receive buffer, M the same in token-major classes, L local experts.
//
// Calls are collective, one thread of a rank at a time. On GPUs they are stream-ordered and may be
// captured in a CUDA graph unless host_counts are asked for.
#pragma once

#include "switchyard/c/config.h"
#include "switchyard/c/exchange.h"
#include "switchyard/c/group.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sy_prepare_finalize sy_prepare_finalize;  ///< what runs before and after the experts

/// PrepareFinalizeOptions.
typedef struct sy_prepare_options {
  size_t struct_size;
  const int64_t* global_to_physical;    ///< [num_experts]; NULL: ids are physical
  const char* reduce;                   ///< NULL: the default of the class
  const char* scale_layout;             ///< NULL: by the scheme and the class
  const sy_exchange_options* exchange;  ///< the device, and how this rank uses it; NULL: defaults
  int64_t expert_alignment;             ///< "elastic_prefill"; 0: 1
  int32_t num_micro_batches;            ///< 0: those of the mirrored class
  bool no_use_cudagraph;                ///< deepep_v2: exact shapes instead of fixed ones
  bool nvfp4_dispatch;                  ///< deepep_low_latency: rows travel as nvfp4
  const char* wire_scheme;              ///< how rows travel; NULL: as the backend sends them
  bool defers_input_quant;  ///< memory for calls with defer_input_quant, as these need it
} sy_prepare_options;

/// What the factory chooses, without making it. Not collective.
typedef struct sy_prepare_choice {
  size_t struct_size;
  const char* kind;           ///< "low_latency", "elastic_decode", "elastic_prefill", "all_gather",
                              ///< "all_to_all", "all_to_all_one_sided", "local"
  const char* scheme;         ///< how the experts get their rows; NULL: it has no name
  const char* scale_layout;   ///< "row_major", "column_major", "column_major_aligned" or "swizzled"
  int32_t num_micro_batches;  ///< 0: those of the mirrored class
  bool slices_experts;        ///< every rank holds a slice of every expert
  const char* wire_scheme;    ///< how rows travel, where not as `scheme`; else NULL
} sy_prepare_choice;
/// choose_prepare_finalize.
SY_API sy_status sy_prepare_choose(const sy_moe_config* moe, sy_quant_config* quant,
                                   const sy_prepare_options* options, sy_prepare_choice* choice);

/// Makes the object. `quant` NULL: not quantized. Collective, except where "local" is chosen.
SY_API sy_status sy_prepare_finalize_create(sy_group* group, const sy_moe_config* moe,
                                            sy_quant_config* quant,
                                            const sy_prepare_options* options,
                                            sy_prepare_finalize** prepare_finalize);

/// What the object says of itself.
typedef struct sy_prepare_finalize_info {
  size_t struct_size;
  const char* kind;                 ///< as in sy_prepare_choice
  const char* activation_format;    ///< "standard" or "batched"
  const char* heap;                 ///< as in sy_exchange_info
  sy_device device;                 ///< where it works
  int64_t hidden;                   ///< H
  int64_t max_buffer_rows;          ///< rows that experts must be ready for
  int64_t max_num_tokens_per_rank;  ///< upper bound on T; -1: none
  int32_t num_topk;                 ///< K
  int32_t num_local_experts;        ///< L
  int32_t num_dispatchers;          ///< ranks that may send to this one
  int32_t num_micro_batches;        ///< that may be open at once
  bool output_is_reduced;           ///< finalize has summed over all ranks
  bool supports_async;              ///< what the original's class says
  bool is_shared_gpu;               ///< several ranks use this rank's GPU
  size_t window_bytes;              ///< shared with the peers
  size_t receive_bytes;             ///< private, scratch included
  const sy_tensor* expert_map;      ///< i32 [E + 1]: local index or -1; as long as the object
} sy_prepare_finalize_info;
/// Fills `info`.
SY_API sy_status sy_prepare_finalize_describe(sy_prepare_finalize* prepare_finalize,
                                              sy_prepare_finalize_info* info);

/// PrepareArguments.
typedef struct sy_prepare_arguments {
  size_t struct_size;
  const sy_tensor* hidden;        ///< [T, H] bf16, f16 or f32
  const sy_tensor* topk_ids;      ///< [T, K] i32 or i64; -1: none
  const sy_tensor* topk_weights;  ///< [T, K] f32
  int64_t max_tokens;   ///< the largest T of all ranks in this call; 0: the configured one
  int32_t micro_batch;  ///< from 0; each has a handle of its own
  bool apply_router_weight_on_input;  ///< multiplies rows by their weight first; K is 1
  bool defer_input_quant;             ///< rows arrive unquantized
  bool weighs_in_place;               ///< apply_router_weight_on_input writes into `hidden`
  bool host_counts;                   ///< GPUs: waits for counts; then no capture
  bool copies_inputs;  ///< CPUs: `hidden` of sy_prepare_send may be overwritten once it returns
} sy_prepare_arguments;

/// Prepared: what the experts get. Memory of the object, valid until finalize of the same
/// micro-batch has returned; the structs here, until the next prepare of that micro-batch.
typedef struct sy_prepared {
  size_t struct_size;
  const sy_tensor* rows;                   ///< [N, H] or [L, C, H]
  const sy_tensor* scales;                 ///< in scale_layout, or NULL
  const sy_tensor* tensor_scale;           ///< of nvfp4, or NULL
  const sy_tensor* first_row;              ///< [L] i64; token-major classes: NULL
  const sy_tensor* num_rows;               ///< [L] i32
  const sy_tensor* total_rows;             ///< [1] i32
  const sy_tensor* expert_num_tokens;      ///< [L] i32, or NULL
  const sy_tensor* expert_num_tokens_cpu;  ///< [L] i32 on the host, or NULL
  const sy_tensor* topk_ids;               ///< NULL: the caller's own hold
  const sy_tensor* topk_weights;           ///< f32, as topk_ids
  const char* scheme;                      ///< how rows are quantized; NULL: it has no name
  const char* scale_layout;                ///< of `scales`
} sy_prepared;

/// Both phases.
SY_API sy_status sy_prepare(sy_prepare_finalize* prepare_finalize,
                            const sy_prepare_arguments* arguments, void* stream,
                            sy_prepared* prepared);
/// The phases. The inputs stay unchanged until the second, unless copies_inputs is set.
SY_API sy_status sy_prepare_send(sy_prepare_finalize* prepare_finalize,
                                 const sy_prepare_arguments* arguments, void* stream);
/// The second phase.
SY_API sy_status sy_prepare_receive(sy_prepare_finalize* prepare_finalize, int32_t micro_batch,
                                    sy_prepared* prepared);

/// FinalizeArguments.
typedef struct sy_finalize_arguments {
  size_t struct_size;
  const sy_tensor* output;         ///< [T, H], written
  const sy_tensor* expert_output;  ///< rows at the places of sy_prepared
  const char* weight_and_reduce;   ///< "delegate" (NULL), "no_op" or "contiguous"
  const sy_tensor* shared;         ///< [T, H] bf16, or NULL
  const sy_tensor* reduced;  ///< [M, H] memory for sums; GPUs require it where M rows are summed
  const sy_tensor* topk_weights;  ///< instead of those of prepare; or NULL
  const sy_tensor* topk_ids;      ///< those of prepare; or NULL
  int32_t micro_batch;            ///< as in prepare
  bool copies_inputs;  ///< CPUs: expert_output of sy_finalize_send may be overwritten once it
                       ///< returns
} sy_finalize_arguments;

/// Both phases.
SY_API sy_status sy_finalize(sy_prepare_finalize* prepare_finalize,
                             const sy_finalize_arguments* arguments, void* stream);
/// The first phase; expert_output stays unchanged until the second, unless copies_inputs is set.
SY_API sy_status sy_finalize_send(sy_prepare_finalize* prepare_finalize,
                                  const sy_finalize_arguments* arguments, void* stream);
/// The second phase: writes `output`.
SY_API sy_status sy_finalize_receive(sy_prepare_finalize* prepare_finalize, int32_t micro_batch);

/// Gives a prepared micro-batch up, because the experts failed; with peers the group is aborted.
SY_API sy_status sy_prepare_finalize_abandon(sy_prepare_finalize* prepare_finalize,
                                             int32_t micro_batch, const char* reason);
/// See sy_exchange_check.
SY_API sy_status sy_prepare_finalize_check(sy_prepare_finalize* prepare_finalize);
/// See sy_exchange_close.
SY_API sy_status sy_prepare_finalize_close(sy_prepare_finalize* prepare_finalize,
                                           bool waits_for_peers);
/// Frees it. Closes it first, if nobody did.
SY_API sy_status sy_prepare_finalize_destroy(sy_prepare_finalize* prepare_finalize);

#ifdef __cplusplus
}
#endif
