// SPDX-License-Identifier: Apache-2.0
//
// c/config.h: parallelism, sizes and quantization of a layer. See parallel_config.h, moe_config.h
// and quant_config.h; docs/configuration.md has the tables.
#pragma once

#include "switchyard/c/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/// ParallelOptions. A size of 0 counts as 1.
typedef struct sy_parallel_options {
  size_t struct_size;
  /// @{ Ranks, and this rank's place: tensor (tp), data (dp), prefill context parallel (pcp).
  int32_t tp_size, tp_rank;
  int32_t dp_size, dp_rank;
  int32_t pcp_size, pcp_rank;
  /// @}
  int32_t sp_size;              ///< sequence parallel
  bool enable_expert_parallel;  ///< ranks hold whole experts, not slices
  bool enable_eplb;             ///< experts are balanced by load
  const char* all2all_backend;  ///< "deepep_low_latency", ...; NULL: SWITCHYARD_ALL2ALL_BACKEND
} sy_parallel_options;

/// ParallelConfig: sizes and ranks as the layer sees them.
typedef struct sy_parallel_config {
  size_t struct_size;
  /// @{ As in sy_parallel_options; ep: expert parallel.
  int32_t tp_size, tp_rank;
  int32_t dp_size, dp_rank;
  int32_t pcp_size, pcp_rank;
  int32_t ep_size, ep_rank;
  int32_t sp_size;
  /// @}
  bool use_ep;                            ///< each rank holds whole experts
  bool use_all2all_kernels;               ///< tokens travel between ranks
  bool use_batched_activation_format;     ///< experts get [L, C, H]
  bool needs_round_robin_routing_tables;  ///< for round-robin placement
  const char* all2all_backend;            ///< as in sy_parallel_options
} sy_parallel_config;
/// ParallelConfig::make.
SY_API sy_status sy_parallel_describe(const sy_parallel_options* options,
                                      sy_parallel_config* config);

/// MoEConfig. Dtypes: "bf16", "f16", "f32".
typedef struct sy_moe_config {
  size_t struct_size;
  int32_t num_experts;                  ///< E, physical
  int32_t num_topk;                     ///< K
  int64_t hidden;                       ///< H
  const sy_parallel_options* parallel;  ///< NULL: one rank
  const char* in_dtype;                 ///< NULL: "bf16"
  int64_t max_num_tokens;               ///< per rank and call; 0: 256
  int64_t intermediate;                 ///< of the whole layer; 0: unknown
  const char* activation;               ///< NULL: "silu"
  bool has_bias;                        ///< the experts have biases
  const int32_t* experts_per_rank;  ///< [num_experts_per_rank] as in sy_exchange_config; or NULL
  size_t num_experts_per_rank;      ///< ep_size, or 0
} sy_moe_config;
/// SY_OK, or why MoEConfig::make refuses it.
SY_API sy_status sy_moe_config_check(const sy_moe_config* config);

/// How activations and weights of a layer are quantized.
typedef struct sy_quant_config sy_quant_config;

/// What the builders of QuantConfig take, in one struct; a field that the named builder does not
/// take is refused. Tensors must outlive the configuration.
typedef struct sy_quant_options {
  size_t struct_size;
  const char* quant_dtype;   ///< "make" and "ocp_mx": "fp8_e4m3", "int8", "mxfp4", ...
  const char* weight_dtype;  ///< the same; NULL: quant_dtype
  /// @{ Fields of QuantOptions and QuantExtras; NULL: absent.
  const sy_tensor *w1_scale, *w2_scale;
  const sy_tensor *a1_scale, *a2_scale;
  const sy_tensor *a1_gscale, *a2_gscale;
  const sy_tensor *g1_alphas, *g2_alphas;
  const sy_tensor *w1_zp, *w2_zp;
  const sy_tensor *w1_bias, *w2_bias;
  const float *gemm1_alpha, *gemm1_beta, *gemm1_clamp_limit;
  /// @}
  const char* scale_format;   ///< "f32" (NULL), "f32_power_of_two", "e8m0_packed"
  int32_t block_shape[2];     ///< rows and columns; zeros: no blocks
  int32_t mx_alignment;       ///< mxfp8: pads H to a multiple of it; 0: no padding
  int32_t weight_bits;        ///< "gptq_marlin": 4 or 8; 0: 4
  int32_t group_size;         ///< "gptq_marlin": inputs that share a scale; 0: all
  bool per_act_token_quant;   ///< one scale per row
  bool per_out_ch_quant;      ///< weights: one scale per output channel
  bool no_is_scale_swizzled;  ///< scales of nvfp4 and mxfp8 are rows, not tiles
} sy_quant_options;

/// `builder`: "unquantized", "make", "fp8_w8a8", "int8_w8a8", "mxfp4_w4a16", "ocp_mx", "nvfp4",
/// "int4_w4a16", "int8_w8a16", "biased", "gptq_marlin", "mxfp4_mxfp8", "mxfp4_w4a8", "mxfp4",
/// "nvfp4_w4a16", "fp8_w8a16", "int4_w4afp8".
SY_API sy_status sy_quant_config_create(const char* builder, const sy_quant_options* options,
                                        sy_quant_config** config);

/// What a configuration says of itself.
typedef struct sy_quant_info {
  size_t struct_size;
  const char* quant_dtype;    ///< of activations; "none" when they are not quantized
  const char* weight_dtype;   ///< of weights, likewise
  const char* ocp_mx_scheme;  ///< "w_mxfp4_a_mxfp4", ...; NULL: none
  const char* scheme;         ///< by which rows of activations are quantized; NULL: it has no name
  int32_t block_shape[2];     ///< zeros: no blocks
  int32_t mx_alignment;       ///< as given
  bool is_quantized;          ///< activations are
  bool per_act_token_quant;   ///< one scale per row
  bool per_out_ch_quant;      ///< weights: one scale per output channel
  bool is_per_tensor;         ///< one scale for all activations
  bool is_scale_swizzled;     ///< scales of nvfp4 and mxfp8 are tiles
} sy_quant_info;
/// Fills `info`.
SY_API sy_status sy_quant_config_describe(sy_quant_config* config, sy_quant_info* info);
/// Rows and columns of the scales of max_tokens rows; zeros when activations are not quantized.
SY_API sy_status sy_quant_config_scale_shape(sy_quant_config* config, int64_t max_tokens,
                                             int64_t hidden, int64_t shape[2]);
/// Frees it.
SY_API sy_status sy_quant_config_destroy(sy_quant_config* config);

#ifdef __cplusplus
}
#endif
