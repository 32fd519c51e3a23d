// SPDX-License-Identifier: Apache-2.0
//
// Selects the dispatch kernel for a scheme.

#include "cuda/exchange/dispatch_forms.h"

namespace switchyard::cuda {
namespace {

enum class Family { kPlain, kStored, kFp8Block, kCoarse, kSmallBlocks };

Family family_of(const DispatchArgs& args) {
  const QuantScheme& scheme = args.scheme;
  if (!scheme.is_quantized()) return Family::kPlain;
  if (!scheme.is_simulated() && args.tokens.dtype == scheme.dtype) return Family::kStored;
  const bool is_small = scheme.rule == ScaleRule::kMx || scheme.rule == ScaleRule::kTwoLevel;
  if (is_small) return Family::kSmallBlocks;
  const bool is_fp8_block = scheme.dtype == DType::kE4M3 && scheme.group == ScaleGroup::kBlock;
  return is_fp8_block ? Family::kFp8Block : Family::kCoarse;
}

}  // namespace

void launch_dispatch(const DispatchArgs& args, Phases phases, bool programmatic,
                     cudaStream_t stream) {
  switch (family_of(args)) {
    case Family::kPlain: return dispatch_plain(args, phases, programmatic, stream);
    case Family::kStored: return dispatch_stored(args, phases, programmatic, stream);
    case Family::kSmallBlocks: return dispatch_small_blocks(args, phases, programmatic, stream);
    case Family::kFp8Block: return dispatch_fp8_block(args, phases, programmatic, stream);
    case Family::kCoarse: return dispatch_coarse(args, phases, programmatic, stream);
  }
}

void launch_pack_rows(const DispatchArgs& args, const PackedRows& to, cudaStream_t stream) {
  switch (family_of(args)) {
    case Family::kPlain: return pack_plain(args, to, stream);
    case Family::kStored: return pack_stored(args, to, stream);
    case Family::kSmallBlocks: return pack_small_blocks(args, to, stream);
    case Family::kFp8Block: return pack_fp8_block(args, to, stream);
    case Family::kCoarse: return pack_coarse(args, to, stream);
  }
}

}  // namespace switchyard::cuda
