// SPDX-License-Identifier: Apache-2.0
//
// prepare_finalize_factory.h: from the configuration of a layer to its prepare/finalize object: the
// class that stands for the backend, what travels, and the scales. docs/configuration.md has the
// tables. Code that knows its class uses make_prepare_finalize(kind, group, config) instead.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "switchyard/export.h"
#include "switchyard/group.h"
#include "switchyard/layout.h"
#include "switchyard/moe_config.h"
#include "switchyard/prepare_finalize.h"
#include "switchyard/quant_config.h"

namespace switchyard {

/// What neither MoEConfig nor QuantConfig says.
struct PrepareFinalizeOptions {
  /// deepep_v2: fixed shapes (kElasticDecode), as CUDA graphs want them; off: exact shapes
  /// (kElasticPrefill). vLLM: not enforce_eager.
  bool use_cudagraph = true;
  /// deepep_low_latency and nixl_ep: nvfp4 rows travel. Off: rows arrive as they were given, and
  /// the experts quantize (vLLM: VLLM_DEEPEPLL_NVFP4_DISPATCH).
  bool nvfp4_dispatch = false;
  /// [E] physical id of each expert, RoutingTables::global_to_physical; empty: ids are physical.
  std::span<const std::int64_t> global_to_physical{};
  std::optional<Reduce> reduce{};     ///< absent: that of the class
  std::int64_t expert_alignment = 1;  ///< kElasticPrefill
  std::int32_t num_micro_batches = 1;
  bool strict = false;  ///< refuses what the originals refuse
};

/// A class and what it is made with.
struct PrepareFinalizeChoice {
  PrepareKind kind = PrepareKind::kLocal;
  PrepareFinalizeConfig config{};
};

/// The class that stands for the configuration's backend. Reads scales, so they must be there.
///
/// Without all-to-all kernels and with one data-parallel rank: kLocal. When tensor-parallel ranks
/// then hold whole experts (ep_size above 1), it serves this rank's: topk_ids are local
/// (global_to_local_ids), -1 for experts of others, and the caller adds the ranks' outputs.
///
/// Errors: kInvalidArgument: nvfp4 without a1_gscale, scales that are not f32, a table that has not
/// one entry for each expert. kNotSupported: data parallel without expert parallelism, static
/// scales that differ between rows or experts, with `strict` a scheme that the backend cannot send.
/// Mirrors vLLM's maybe_make_prepare_finalize.
SWITCHYARD_API PrepareFinalizeChoice choose_prepare_finalize(
    const MoEConfig& moe, const QuantConfig& quant, const PrepareFinalizeOptions& options = {});

/// Makes what choose_prepare_finalize says. Collective, except for kLocal, which ignores the group.
///
///   group  the ep_size ranks that hold the experts, this one being ep_rank
///
/// Errors: as choose_prepare_finalize; kInvalidArgument: another size or rank of the group, with
/// `strict` shapes that the original refuses; kOutOfMemory.
SWITCHYARD_API std::unique_ptr<PrepareFinalize> make_prepare_finalize(
    const Group& group, const MoEConfig& moe, const QuantConfig& quant,
    const PrepareFinalizeOptions& options = {});

/// The three flags of vLLM's create_flashinfer_prepare_finalize (September 2025).
struct FlashInferFlags {
  bool use_dp = false;            ///< ranks have different tokens; off: kLocal
  bool use_nvfp4 = false;         ///< what QuantConfig::use_nvfp4_w4a4() says
  bool enable_alltoallv = false;  ///< with nvfp4 kAllToAll; else kAllGather
};

/// The backend of `moe` does not count. Errors: as choose_prepare_finalize, kInvalidArgument when
/// use_nvfp4 and `quant` disagree.
SWITCHYARD_API PrepareFinalizeChoice choose_flashinfer_prepare_finalize(
    const FlashInferFlags& flags, const MoEConfig& moe, const QuantConfig& quant,
    const PrepareFinalizeOptions& options = {});

/// Collective with use_dp. Errors: as make_prepare_finalize.
SWITCHYARD_API std::unique_ptr<PrepareFinalize> make_flashinfer_prepare_finalize(
    const Group& group, const FlashInferFlags& flags, const MoEConfig& moe,
    const QuantConfig& quant, const PrepareFinalizeOptions& options = {});

}  // namespace switchyard
