// SPDX-License-Identifier: Apache-2.0
//
// Selects the kernel of direct_dispatch.cuh for a scheme, as dispatch.cpp does.

#include "cuda/exchange/direct_dispatch.cuh"
#include "cuda/exchange/direct_forms.h"
#include "cuda/exchange/wire_form.h"

namespace switchyard::cuda {
namespace {

void direct_plain(const DirectDispatchArgs& args, Phases phases, bool programmatic,
                  cudaStream_t stream) {
  if (args.scheme.dtype == DType::kF32) {
    return launch_direct_form<PlainForm32>(args, phases, programmatic, stream);
  }
  launch_direct_form<PlainForm16>(args, phases, programmatic, stream);
}

void direct_stored8(const DirectDispatchArgs& args, Phases phases, bool programmatic,
                    cudaStream_t stream) {
  launch_direct_form<StoredForm8>(args, phases, programmatic, stream);
}

void direct_fp8_block(const DirectDispatchArgs& args, Phases phases, bool programmatic,
                      cudaStream_t stream) {
  launch_direct_form<Fp8BlockForm>(args, phases, programmatic, stream);
}

}  // namespace

void launch_direct_dispatch(const DirectDispatchArgs& args, Phases phases, bool programmatic,
                            cudaStream_t stream) {
  const QuantScheme& scheme = args.scheme;
  const auto dispatch = !scheme.is_quantized()              ? direct_plain
                        : scheme.is_simulated()             ? direct_simulated
                        : scheme.dtype == DType::kE2M1      ? direct_form4
                        : args.tokens.dtype == scheme.dtype ? direct_stored8
                        : is_fp8_block(scheme)              ? direct_fp8_block
                                                            : direct_other8;
  dispatch(args, phases, programmatic, stream);
}

}  // namespace switchyard::cuda
