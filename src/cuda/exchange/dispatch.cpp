// SPDX-License-Identifier: Apache-2.0
//
// Selects the dispatch kernel for a scheme.

#include "cuda/exchange/dispatch_forms.h"
#include "cuda/exchange/wire_form.h"

namespace switchyard::cuda {

void launch_dispatch(const DispatchArgs& args, Phases phases, bool programmatic,
                     cudaStream_t stream) {
  const QuantScheme& scheme = args.scheme;
  const auto dispatch = !scheme.is_quantized()              ? dispatch_plain
                        : scheme.is_simulated()             ? dispatch_simulated
                        : scheme.dtype == DType::kE2M1      ? dispatch_form4
                        : args.tokens.dtype == scheme.dtype ? dispatch_stored8
                        : is_fp8_block(scheme)              ? dispatch_fp8_block
                                                            : dispatch_other8;
  dispatch(args, phases, programmatic, stream);
}

}  // namespace switchyard::cuda
