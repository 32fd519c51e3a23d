// SPDX-License-Identifier: Apache-2.0
//
// prepare_finalize_factory.h: makes the prepare/finalize object of a layer from its configuration:
// the class that implements the backend, the format of rows on the wire, and the scales.
// docs/configuration.md has the tables. Code that knows its class calls
// make_prepare_finalize(kind, group, config) instead.
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

/// Options that are part of neither MoEConfig nor QuantConfig.
struct PrepareFinalizeOptions {
  /// deepep_v2: true selects fixed shapes for CUDA graphs (kElasticDecode), false exact shapes
  /// (kElasticPrefill). vLLM: not enforce_eager.
  bool use_cudagraph = true;
  /// deepep_low_latency and nixl_ep: rows travel as nvfp4. False: rows arrive unquantized, and the
  /// experts quantize them (vLLM: VLLM_DEEPEPLL_NVFP4_DISPATCH).
  bool nvfp4_dispatch = false;
  /// [E] physical id of each expert: RoutingTables::global_to_physical. Empty: ids are physical.
  std::span<const std::int64_t> global_to_physical{};
  std::optional<Reduce> reduce{};  ///< absent: the default of the class
  /// Of the scales that the experts get. Absent: kSwizzled for nvfp4 and mxfp8 with
  /// QuantConfig::is_scale_swizzled(); kColumnMajorAligned for packed UE8M0 words, as DeepGEMM
  /// reads them; kColumnMajor for the fp8 blocks that DeepEP's low-latency kernels cast; otherwise
  /// kRowMajor.
  std::optional<ScaleLayout> scale_layout{};
  std::int64_t expert_alignment = 1;   ///< kElasticPrefill
  std::int32_t num_micro_batches = 0;  ///< 0: those of the mirrored class
  /// Instead of how rows of the backend travel: PrepareFinalizeConfig::wire_scheme.
  std::optional<QuantScheme> wire_scheme{};
  bool defers_input_quant = false;  ///< PrepareFinalizeConfig::defers_input_quant
  ExchangeOptions exchange{};       ///< the device, and how this rank uses it
};

/// A class and its configuration.
struct PrepareFinalizeChoice {
  PrepareKind kind = PrepareKind::kLocal;  ///< the class
  PrepareFinalizeConfig config{};          ///< what it is made of
};

/// Chooses the class that implements the configured backend. Reads the values of scales, so they
/// must be valid on the host.
///
/// kLocal without all-to-all kernels and with a single data-parallel rank. If tensor-parallel ranks
/// then hold whole experts (ep_size above 1), kLocal serves this rank's experts only: topk_ids are
/// global as everywhere, expert_map has -1 for other ranks' experts, and the caller sums the
/// outputs of the ranks.
///
/// kAllGather with slices_experts for data parallelism without expert parallelism: it adds up the
/// data-parallel ranks, and the caller sums over the tensor-parallel ranks inside each of them.
///
/// Errors: kInvalidArgument (nvfp4 without a1_gscale, scales that are not f32, a table that does
/// not have one entry per expert, a1_gscale where only a1_scale counts); kNotSupported (prefill
/// context or sequence parallelism without expert parallelism, static scales that differ between
/// rows or experts, an mx_alignment that H is not a multiple of).
/// Mirrors vLLM's maybe_make_prepare_finalize.
SWITCHYARD_API PrepareFinalizeChoice choose_prepare_finalize(
    const MoEConfig& moe, const QuantConfig& quant, const PrepareFinalizeOptions& options = {});

/// Makes the object that choose_prepare_finalize selects. Collective, except for kLocal, which
/// ignores the group.
///
///   group  the ep_size ranks that hold the experts; this rank is ep_rank. With slices_experts the
///          dp_size ranks of one data-parallel group; this rank is dp_rank: where there is tensor
///          parallelism inside, Group::split(tensor-parallel rank, dp_rank) of all ranks.
///          kAllGather takes that group with expert parallelism, too, as vLLM does: a token goes
///          once to each data-parallel rank, to the experts of its tensor-parallel rank there, and
///          the caller sums the outputs over the tensor-parallel ranks
///
/// Errors: kInvalidArgument and kNotSupported when choose_prepare_finalize refuses the
/// configuration; kInvalidArgument for a group of another size or rank; kOutOfMemory.
SWITCHYARD_API std::unique_ptr<PrepareFinalize> make_prepare_finalize(
    const Group& group, const MoEConfig& moe, const QuantConfig& quant,
    const PrepareFinalizeOptions& options = {});

}  // namespace switchyard
