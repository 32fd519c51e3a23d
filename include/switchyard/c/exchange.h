// SPDX-License-Identifier: Apache-2.0
//
// c/exchange.h: move each token to the ranks that hold its experts, and bring the results back. See
// exchange_config.h, exchange_types.h and exchange.h.
//
// Letters: T tokens on this rank, K experts chosen per token, H elements per token, P ranks,
// L experts this rank holds, N rows of a receive buffer, C capacity, S scales per row.
//
// Every rank makes these calls in the same order, from one thread at a time. On CPUs a call returns
// when it is done; on GPUs it is stream-ordered, and dispatch, combine and their phases may be
// captured in a CUDA graph unless host_counts are asked for. What only data or peers show appears
// at the next wait (CPU), or in sy_exchange_check and every later call (GPU).
#pragma once

#include "switchyard/c/base.h"
#include "switchyard/c/group.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sy_exchange sy_exchange;  ///< dispatch and combine over a group
typedef struct sy_dispatch sy_dispatch;  ///< one dispatch, with what it received

/// Every rank passes equal values.
typedef struct sy_exchange_config {
  size_t struct_size;
  int32_t num_experts;          ///< E of all ranks
  int32_t num_topk;             ///< K
  int64_t hidden;               ///< H
  int64_t max_tokens_per_rank;  ///< upper bound on T, over all ranks
  const char* layout;        ///< "batched", "expanded" (NULL), "compact", "by_rank", "all_gather"
  const char* scheme;        ///< of rows on the wire; NULL: "none"; "f16" and "f32" are "none" with
                             ///< that row_dtype
  const char* row_dtype;     ///< with "none": "bf16" (NULL), "f16" or "f32"
  const char* scale_layout;  ///< of received scales: "row_major" (NULL), "column_major",
                             ///< "column_major_aligned", "swizzled"
  const char* reduce;        ///< "per_rank" (NULL), "per_expert" or "per_host"
  const char* combine_scheme;       ///< of returned rows, likewise
  const char* combine_dtype;        ///< with "none": "bf16" (NULL), "f16" or "f32"
  const char* overflow;             ///< "error" (NULL) or "drop"
  const int64_t* payload_bytes;     ///< [num_payloads] bytes per row
  size_t num_payloads;              ///< that travel with each token
  int64_t expert_alignment;         ///< "expanded"; 0: 1
  int64_t capacity;                 ///< rows that an expert accepts; 0: as many as can arrive
  int32_t max_in_flight;            ///< handles that may be alive at once; 0: 1
  bool slices_experts;              ///< "all_gather": every rank holds a slice of every expert
  bool no_sends_weights;            ///< topk_weights do not travel with dispatch
  bool worst_case_rows;             ///< receive tensors always have their maximum size
  bool zero_padding;                ///< "expanded": zeroes rows and scales that no token fills
  const int32_t* experts_per_rank;  ///< [num_experts_per_rank] how many each rank holds, or none;
                                    ///< NULL: as many each, and one more on the first ranks
  size_t num_experts_per_rank;      ///< the number of ranks, or 0
} sy_exchange_config;

/// What a rank chooses for itself.
typedef struct sy_exchange_options {
  size_t struct_size;
  sy_device device;  ///< zero: the CPU
  const char* heap;  ///< GPUs: "auto", "same_process", "vmm", "ipc", "nccl"; NULL: SWITCHYARD_HEAP
  int64_t timeout_ms;           ///< how long a kernel waits for a peer; 0: as the group
  int32_t num_ctas;             ///< GPUs: upper bound on the CTAs of a kernel; 0: as many as fit
  bool no_programmatic_launch;  ///< kernels wait for the one ahead before they are launched
  bool exact_memory;            ///< GPUs: memory for as many rows as came at most
  bool keeps_routing;           ///< GPUs: for `earlier` and sy_dispatch_reopen; CPUs always keep it
  // GPUs of several hosts; the same on every rank. They allocate a message to each host.
  bool exact_messages;    ///< messages have the size of what crosses; who sends waits for counts on
                          ///< the host, unless the call is captured, which all ranks do or none
  int64_t host_capacity;  ///< tokens of a rank that may go to one other host, more are
                          ///< SY_CAPACITY_EXCEEDED; 0: all
} sy_exchange_options;

/// Bytes of one rank on CPUs. Pure.
typedef struct sy_exchange_memory {
  size_t struct_size;
  size_t window_bytes;   ///< shared with the peers
  size_t receive_bytes;  ///< private
} sy_exchange_memory;
/// exchange_memory.
SY_API sy_status sy_exchange_plan(const sy_exchange_config* config, int32_t num_ranks, int32_t rank,
                                  sy_exchange_memory* memory);

/// The same for ranks on the hosts with these numbers, [num_ranks]. Windows then also have the rows
/// that are passed on, and receive_bytes the messages between hosts.
SY_API sy_status sy_exchange_plan_hosts(const sy_exchange_config* config, const int32_t* hosts,
                                        size_t num_ranks, int32_t rank, sy_exchange_memory* memory);

/// Agrees on the configuration and takes memory for the largest call. Collective.
SY_API sy_status sy_exchange_create(sy_group* group, const sy_exchange_config* config,
                                    const sy_exchange_options* options, sy_exchange** exchange);

/// What an exchange says of itself.
typedef struct sy_exchange_info {
  size_t struct_size;
  sy_device device;         ///< as given
  int64_t max_buffer_rows;  ///< upper bound on N for this rank
  size_t window_bytes;      ///< shared with the peers
  size_t receive_bytes;     ///< private
  const char* heap;         ///< how windows are shared: "host", or as the option of that name
  bool is_shared_gpu;       ///< several ranks use this rank's GPU
} sy_exchange_info;
/// Fills `info`.
SY_API sy_status sy_exchange_describe(sy_exchange* exchange, sy_exchange_info* info);

/// SY_OK, or what kernels that have ended found, or why the group was aborted. Does not wait.
SY_API sy_status sy_exchange_check(sy_exchange* exchange);
/// Ends the exchange; a second call does nothing. Collective on GPUs: returns when the kernels of
/// every rank have ended. Every later call is SY_INVALID_ARGUMENT; received rows stay valid until
/// sy_exchange_destroy, which then needs no other rank. During a call of another thread it returns
/// at once, and the exchange ends with that call. Without waits_for_peers it is not collective: for
/// a rank that fails while others wait for it. See Exchange::close.
SY_API sy_status sy_exchange_close(sy_exchange* exchange, bool waits_for_peers);
/// Closes it first, if nobody did. Its dispatches only answer sy_dispatch_destroy from then on.
SY_API sy_status sy_exchange_destroy(sy_exchange* exchange);

/// What dispatch takes besides tokens and routing.
typedef struct sy_dispatch_options {
  size_t struct_size;
  const sy_tensor* scales;        ///< [T, S]: the tokens are already quantized; or NULL
  const sy_tensor* tensor_scale;  ///< [1] f32 for schemes with one scale per tensor, nvfp4; or NULL
  const sy_tensor* payloads;      ///< [num_payloads] tensors of the configured bytes per row
  size_t num_payloads;            ///< as configured
  sy_dispatch* earlier;           ///< rows land where its rows landed; topk_ids are NULL then
  int64_t max_tokens;  ///< the largest T of all ranks in this call; 0: the configured one
  int32_t slot;        ///< the in-flight slot, from 1, one above that of C++; 0: the first free one
  bool routing_only;   ///< rows do not travel
  bool host_counts;    ///< GPUs: waits for counts: true sizes, sy_dispatch_counts; no capture
  bool copies_inputs;  ///< CPUs: the inputs of sy_dispatch_send may be overwritten once it returns
} sy_dispatch_options;

/// Both phases. tokens [T, H] bf16, f16, f32 or quantized; topk_ids [T, K] i32 or i64, -1 for none;
/// topk_weights [T, K] f32 of any value, NaN too (exchange.h), or NULL for all 1. `dispatch` is one
/// of the configured max_in_flight until it is combined or released.
SY_API sy_status sy_dispatch_tokens(sy_exchange* exchange, const sy_tensor* tokens,
                                    const sy_tensor* topk_ids, const sy_tensor* topk_weights,
                                    const sy_dispatch_options* options, void* stream,
                                    sy_dispatch** dispatch);
/// The first phase; the inputs stay unchanged until the second, unless copies_inputs is set.
SY_API sy_status sy_dispatch_send(sy_exchange* exchange, const sy_tensor* tokens,
                                  const sy_tensor* topk_ids, const sy_tensor* topk_weights,
                                  const sy_dispatch_options* options, void* stream,
                                  sy_dispatch** dispatch);
/// The second phase: receives the peers' rows and places them.
SY_API sy_status sy_dispatch_receive(sy_dispatch* dispatch, void* stream);
/// One more dispatch with the routing of an earlier one, without rows: for a combine.
SY_API sy_status sy_dispatch_reopen(sy_dispatch* earlier, void* stream, sy_dispatch** dispatch);

/// Received rows: memory of the exchange, until the combine was received or the dispatch released;
/// the structs here, until the dispatch is destroyed. NULL: absent.
typedef struct sy_received {
  size_t struct_size;
  const sy_tensor* rows;          ///< [N, H], "batched" [L, C, H]
  const sy_tensor* scales;        ///< in scale_layout
  const sy_tensor* tensor_scale;  ///< of nvfp4
  const sy_tensor* first_row;     ///< [L] i64: first row of each expert; token-major layouts: NULL
  const sy_tensor* num_rows;      ///< [L] i32: valid rows of each expert
  const sy_tensor* total_rows;    ///< [1] i32: valid rows
  const sy_tensor* topk_ids;      ///< [N, K] i32, token-major layouts
  const sy_tensor* topk_weights;  ///< f32 [N, K], expert-major [N]
  const sy_tensor* num_dropped;   ///< [1] i32, overflow "drop"
  const sy_tensor* const* payloads;  ///< [num_payloads] u8 [N, bytes]
  size_t num_payloads;               ///< as configured
} sy_received;
/// Fills `received`.
SY_API sy_status sy_dispatch_rows(sy_dispatch* dispatch, sy_received* received);

/// What the host knows of received rows, as long as these are valid: always on CPUs, on GPUs with
/// host_counts, else SY_NOT_AVAILABLE.
typedef struct sy_host_counts {
  size_t struct_size;
  int64_t num_rows;                ///< valid rows
  int64_t num_dropped;             ///< this rank's choices that capacity dropped
  const int64_t* rows_per_rank;    ///< [num_ranks]
  size_t num_ranks;                ///< P
  const int32_t* rows_per_expert;  ///< [num_local_experts]
  size_t num_local_experts;        ///< L
  const int64_t* expert_load;      ///< [num_experts] rows that all ranks sent; GPUs: none
  size_t num_experts;              ///< E, or 0
  const int64_t* wait_ns;          ///< [num_waits] per rank; GPUs: none
  size_t num_waits;                ///< P, or 0
} sy_host_counts;
/// Fills `counts`.
SY_API sy_status sy_dispatch_counts(sy_dispatch* dispatch, sy_host_counts* counts);

/// i32 tensors [N], [N], [P] on the device: where each row comes from; NULL is not written.
SY_API sy_status sy_dispatch_sources(sy_dispatch* dispatch, const sy_tensor* rank,
                                     const sy_tensor* token, const sy_tensor* rows_per_rank,
                                     void* stream);
/// i32 tensor [N] on the device: which of its token's choices each row serves, RowOrigin::k.
SY_API sy_status sy_dispatch_choices(sy_dispatch* dispatch, const sy_tensor* k, void* stream);
/// Bytes that left this rank for other ranks. GPUs: for other hosts; of one host SY_NOT_SUPPORTED.
SY_API sy_status sy_dispatch_wire_bytes(sy_dispatch* dispatch, int64_t* sent, int64_t* returned);

/// What combine takes besides rows and output.
typedef struct sy_combine_options {
  size_t struct_size;
  const sy_tensor* row_weights;       ///< [N] or [N, K] f32: returned to the source ranks; or NULL
  const sy_tensor* topk_weights;      ///< [T, K] f32: "per_expert": instead of those of dispatch
  const sy_tensor* bias;              ///< [num_bias] tensors [T, H] bf16, added first
  size_t num_bias;                    ///< at most 4 on GPUs
  const sy_tensor* shared;            ///< [T, H] bf16: added to the rounded sum; or NULL
  const sy_tensor* returned_weights;  ///< [T, K] f32, written; or NULL
  bool rows_are_weighted;             ///< "per_rank" sums the rows as they are
  bool copies_inputs;  ///< CPUs: rows of sy_combine_send may be overwritten once it returns
} sy_combine_options;

/// Both phases. rows [N, H] or [L, C, H] bf16, f16 or f32: results at the places of the received
/// rows; output [T, H], written.
SY_API sy_status sy_combine(sy_dispatch* dispatch, const sy_tensor* rows, const sy_tensor* output,
                            const sy_combine_options* options, void* stream);
/// The phases. sy_combine_send reads rows_are_weighted, row_weights and copies_inputs,
/// sy_combine_receive the rest.
SY_API sy_status sy_combine_send(sy_dispatch* dispatch, const sy_tensor* rows,
                                 const sy_combine_options* options, void* stream);
/// The second phase: writes `output`.
SY_API sy_status sy_combine_receive(sy_dispatch* dispatch, const sy_tensor* output,
                                    const sy_combine_options* options, void* stream);
/// Memory for the rows of sy_combine, in bf16, of the shape of the received rows: GPUs that store
/// rows straight to their places read results of peers there. Written after the rows were received
/// and before they are sent. `rows` lasts as long as `dispatch`.
SY_API sy_status sy_combine_input(sy_dispatch* dispatch, const sy_tensor** rows);
/// What sy_combine_receive would refuse of these arguments. Sends nothing.
SY_API sy_status sy_combine_check(sy_dispatch* dispatch, const sy_tensor* output,
                                  const sy_combine_options* options);

/// Gives a dispatch up without a combine; every rank must do the same.
SY_API sy_status sy_dispatch_release(sy_dispatch* dispatch);
/// Frees the handle. A dispatch that was neither combined nor released keeps its slot.
SY_API sy_status sy_dispatch_destroy(sy_dispatch* dispatch);

#ifdef __cplusplus
}
#endif
