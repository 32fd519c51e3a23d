// SPDX-License-Identifier: Apache-2.0
//
// parallel_config.h: how the ranks of a job share a MoE layer (tensor, data, context and expert
// parallelism), and which backend moves tokens.
#pragma once

#include <cstdint>
#include <optional>

#include "switchyard/all2all_backend.h"
#include "switchyard/export.h"

namespace switchyard {

/// A rank is read only where its size is above 1; otherwise it counts as 0.
struct ParallelOptions {
  std::int32_t tp_size = 1;   ///< tensor parallel
  std::int32_t tp_rank = 0;   ///< below tp_size
  std::int32_t dp_size = 1;   ///< data parallel
  std::int32_t dp_rank = 0;   ///< below dp_size
  std::int32_t pcp_size = 1;  ///< prefill context parallel; counts as data parallel
  std::int32_t pcp_rank = 0;  ///< below pcp_size
  std::int32_t sp_size = 1;   ///< sequence parallel: splits the tokens of a data-parallel rank
  bool enable_expert_parallel = false;  ///< ranks hold whole experts, not slices
  bool enable_eplb = false;             ///< balance experts by load
  /// Absent: the setting SWITCHYARD_ALL2ALL_BACKEND decides.
  std::optional<All2AllBackend> all2all_backend{};
};

/// Sizes and ranks as the MoE layer sees them. Mirrors vLLM's FusedMoEParallelConfig.
///
/// The ranks of the job are flattened:
/// flat_rank = (dp_rank * pcp_size + pcp_rank) * tp_size + tp_rank.
/// With expert parallelism each rank holds whole experts (ep), without it a slice of every expert
/// (tp).
struct SWITCHYARD_API ParallelConfig {
  /// @{ Ranks of each kind of parallelism, and this rank's place: tensor (tp), prefill context
  /// (pcp), data (dp), expert (ep), sequence (sp).
  std::int32_t tp_size = 1;
  std::int32_t tp_rank = 0;
  std::int32_t pcp_size = 1;
  std::int32_t pcp_rank = 0;
  std::int32_t dp_size = 1;
  std::int32_t dp_rank = 0;
  std::int32_t ep_size = 1;
  std::int32_t ep_rank = 0;
  std::int32_t sp_size = 1;
  /// @}
  bool use_ep = false;  ///< each rank holds whole experts
  All2AllBackend all2all_backend = All2AllBackend::kAllGatherReduceScatter;  ///< what moves tokens
  bool enable_eplb = false;  ///< experts are balanced by load

  /// Uses expert parallelism when it is enabled and there is more than one rank.
  ///
  /// Errors: kInvalidArgument (a size below 1, a rank that is not below its size, 2^31 ranks or
  /// more, an unknown name in the setting).
  static ParallelConfig make(const ParallelOptions& options);
  static ParallelConfig make_no_parallel() { return {}; }  ///< one rank

  /// @{ As vLLM's properties.
  bool is_sequence_parallel() const { return sp_size > 1; }
  bool use_all2all_kernels() const {
    return use_ep && (dp_size > 1 || pcp_size > 1 || is_sequence_parallel());
  }
  /// @}
  /// True when all-to-all kernels are used and the backend is exactly this one.
  bool uses(All2AllBackend backend) const {
    return use_all2all_kernels() && all2all_backend == backend;
  }

  /// @{ As vLLM's properties: which backend is used, and what it requires.
  bool use_deepep_ht_kernels() const { return uses(All2AllBackend::kDeepEpHighThroughput); }
  bool use_deepep_ll_kernels() const { return uses(All2AllBackend::kDeepEpLowLatency); }
  bool use_deepep_v2_kernels() const { return uses(All2AllBackend::kDeepEpV2); }
  bool use_fi_nvl_two_sided_kernels() const {
    return uses(All2AllBackend::kFlashInferNvlinkTwoSided) ||
           uses(All2AllBackend::kFlashInferAll2AllV);
  }
  bool use_fi_nvl_one_sided_kernels() const {
    return uses(All2AllBackend::kFlashInferNvlinkOneSided);
  }
  bool use_ag_rs_all2all_kernels() const { return uses(All2AllBackend::kAllGatherReduceScatter); }
  bool use_naive_all2all_kernels() const { return uses(All2AllBackend::kNaive); }
  bool use_mori_kernels() const {
    return uses(All2AllBackend::kMoriHighThroughput) || uses(All2AllBackend::kMoriLowLatency);
  }
  bool use_nixl_ep_kernels() const { return uses(All2AllBackend::kNixlEp); }
  bool use_pplx_kernels() const { return uses(All2AllBackend::kPplx); }

  bool use_batched_activation_format() const {
    return use_deepep_ll_kernels() || use_nixl_ep_kernels();
  }
  bool needs_round_robin_routing_tables() const { return use_batched_activation_format(); }
  /// @}

  friend bool operator==(const ParallelConfig&, const ParallelConfig&) = default;
};

}  // namespace switchyard
