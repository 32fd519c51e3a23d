// SPDX-License-Identifier: Apache-2.0
//
// Selects the dispatch kernel for a scheme.

#include "cuda/exchange/dispatch_forms.h"

namespace switchyard::cuda {

void launch_dispatch(const DispatchArgs& args, Phases phases, bool programmatic,
                     cudaStream_t stream) {
  const QuantScheme& scheme = args.scheme;
  if (!scheme.is_quantized()) return dispatch_plain(args, phases, programmatic, stream);
  if (!scheme.is_simulated() && args.tokens.dtype == scheme.dtype) {
    return dispatch_stored(args, phases, programmatic, stream);
  }
  const bool is_small = scheme.rule == ScaleRule::kMx || scheme.rule == ScaleRule::kTwoLevel;
  if (is_small) return dispatch_small_blocks(args, phases, programmatic, stream);
  const bool is_fp8_block = scheme.dtype == DType::kE4M3 && scheme.group == ScaleGroup::kBlock;
  if (is_fp8_block) return dispatch_fp8_block(args, phases, programmatic, stream);
  dispatch_coarse(args, phases, programmatic, stream);
}

}  // namespace switchyard::cuda
