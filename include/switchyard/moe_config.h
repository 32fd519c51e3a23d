// SPDX-License-Identifier: Apache-2.0
//
// moe_config.h: the sizes of one MoE layer on one rank, and what follows from them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "switchyard/dtype.h"
#include "switchyard/export.h"
#include "switchyard/parallel_config.h"

namespace switchyard {

/// Default of MoEConfig::max_num_tokens (vLLM: the DP chunk size).
inline constexpr std::int64_t kDefaultMaxNumTokens = 256;

/// The activation between the two GEMMs. Gated activations combine pairs of gate and up.
enum class MoEActivation : std::uint8_t {
  kSilu,
  kGelu,
  kSwigluOai,
  kSiluNoMul,
  kGeluNoMul,
  kRelu2NoMul,
};

/// @{ "silu", "gelu", "swigluoai", "silu_no_mul", "gelu_no_mul", "relu2_no_mul".
SWITCHYARD_API const char* name_of(MoEActivation activation) noexcept;
SWITCHYARD_API std::optional<MoEActivation> moe_activation_from_name(
    std::string_view name) noexcept;
/// @}
/// True for the activations that combine gate and up.
SWITCHYARD_API bool is_gated(MoEActivation activation) noexcept;

/// Mirrors vLLM's FusedMoEConfig. Fill in the fields and pass them through make().
struct SWITCHYARD_API MoEConfig {
  std::int32_t num_experts = 0;                        ///< E, physical: redundant experts included
  std::int32_t num_topk = 0;                           ///< K (vLLM: experts_per_token)
  std::int64_t hidden = 0;                             ///< H, padding included
  ParallelConfig parallel{};                           ///< how ranks share the layer
  DType in_dtype = DType::kBF16;                       ///< of hidden states
  std::int64_t max_num_tokens = kDefaultMaxNumTokens;  ///< per rank and call; equal on all ranks
  bool has_bias = false;                               ///< the experts have biases
  std::int64_t intermediate = 0;                       ///< of the whole layer; 0: unknown
  MoEActivation activation = MoEActivation::kSilu;     ///< between the two GEMMs

  // Each absent field below is set by make() to the value in its comment.
  std::optional<std::int32_t> num_local_experts{};    ///< by experts_per_rank
  std::optional<std::int32_t> num_logical_experts{};  ///< num_experts
  std::optional<DType> router_logits_dtype{};         ///< in_dtype
  std::optional<std::int64_t> hidden_unpadded{};      ///< hidden
  std::optional<std::int64_t>
      intermediate_per_partition_unpadded{};  ///< intermediate_per_partition()

  /// [ep_size] How many experts each of these ranks holds; empty: equal numbers, and one more on
  /// each of the first.
  std::vector<std::int32_t> experts_per_rank{};

  /// Errors: kInvalidArgument (E not from 1 to 65535, K not from 1 to min(64, E), H or
  /// max_num_tokens below 1, intermediate not a multiple of tp_size, an optional field out of
  /// range, a dtype other than bf16, f16 or f32, an inconsistent parallel configuration).
  static MoEConfig make(MoEConfig fields);

  /// The share of this rank.
  std::int64_t intermediate_per_partition() const { return intermediate / parallel.tp_size; }
  /// Whether the activation is gated.
  bool is_act_and_mul() const { return is_gated(activation); }

  /// @{ Those of `parallel`.
  std::int32_t tp_size() const { return parallel.tp_size; }
  std::int32_t tp_rank() const { return parallel.tp_rank; }
  std::int32_t dp_size() const { return parallel.dp_size; }
  std::int32_t dp_rank() const { return parallel.dp_rank; }
  std::int32_t pcp_size() const { return parallel.pcp_size; }
  std::int32_t pcp_rank() const { return parallel.pcp_rank; }
  std::int32_t ep_size() const { return parallel.ep_size; }
  std::int32_t ep_rank() const { return parallel.ep_rank; }
  std::int32_t sp_size() const { return parallel.sp_size; }
  bool use_ep() const { return parallel.use_ep; }
  bool is_sequence_parallel() const { return parallel.is_sequence_parallel(); }
  bool use_all2all_kernels() const { return parallel.use_all2all_kernels(); }
  bool use_deepep_ht_kernels() const { return parallel.use_deepep_ht_kernels(); }
  bool use_deepep_ll_kernels() const { return parallel.use_deepep_ll_kernels(); }
  bool use_deepep_v2_kernels() const { return parallel.use_deepep_v2_kernels(); }
  bool use_fi_nvl_two_sided_kernels() const { return parallel.use_fi_nvl_two_sided_kernels(); }
  bool use_fi_nvl_one_sided_kernels() const { return parallel.use_fi_nvl_one_sided_kernels(); }
  bool use_ag_rs_all2all_kernels() const { return parallel.use_ag_rs_all2all_kernels(); }
  bool use_naive_all2all_kernels() const { return parallel.use_naive_all2all_kernels(); }
  bool use_mori_kernels() const { return parallel.use_mori_kernels(); }
  bool use_nixl_ep_kernels() const { return parallel.use_nixl_ep_kernels(); }
  bool use_pplx_kernels() const { return parallel.use_pplx_kernels(); }
  bool use_batched_activation_format() const { return parallel.use_batched_activation_format(); }
  bool needs_round_robin_routing_tables() const {
    return parallel.needs_round_robin_routing_tables();
  }
  /// @}

  /// True when the setting SWITCHYARD_USE_FLASHINFER_MOE_FP4 is 1,
  /// SWITCHYARD_FLASHINFER_MOE_BACKEND is "throughput", and the caller has such kernels.
  /// Errors: kInvalidArgument for a setting that cannot be parsed.
  bool use_flashinfer_cutlass_kernels(bool has_kernels = true) const;
};

}  // namespace switchyard
