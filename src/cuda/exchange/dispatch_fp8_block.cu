// SPDX-License-Identifier: Apache-2.0

#include "cuda/exchange/dispatch_forms.h"
#include "cuda/exchange/dispatch_kernel.cuh"
#include "cuda/exchange/pack_rows.cuh"

namespace switchyard::cuda {
namespace {

constexpr QuantScheme with_powers_of_two(QuantScheme scheme) {
  scheme.scale_format = ScaleFormat::kF32PowerOfTwo;
  return scheme;
}

constexpr QuantScheme kPowers = with_powers_of_two(schemes::kFp8Block);
constexpr QuantScheme kPowersDeepEp = with_powers_of_two(schemes::kFp8BlockDeepEp);

template <class Task>
void with_form(const QuantScheme& scheme, const Task& task) {
  if (scheme == schemes::kFp8Block)
    return task.template operator()<QuantizedForm<schemes::kFp8Block>>();
  if (scheme == schemes::kFp8BlockDeepEp)
    return task.template operator()<QuantizedForm<schemes::kFp8BlockDeepEp>>();
  if (scheme == schemes::kFp8Ue8m0)
    return task.template operator()<QuantizedForm<schemes::kFp8Ue8m0>>();
  if (scheme == schemes::kFp8Ue8m0DeepEp)
    return task.template operator()<QuantizedForm<schemes::kFp8Ue8m0DeepEp>>();
  if (scheme == kPowers) return task.template operator()<QuantizedForm<kPowers>>();
  task.template operator()<QuantizedForm<kPowersDeepEp>>();
}

}  // namespace

void dispatch_fp8_block(const DispatchArgs& args, Phases phases, bool programmatic,
                        cudaStream_t stream) {
  with_form(args.scheme,
            [&]<class Form>() { launch_form<Form>(args, phases, programmatic, stream); });
}

void pack_fp8_block(const DispatchArgs& args, const PackedRows& to, cudaStream_t stream) {
  with_form(args.scheme, [&]<class Form>() { launch_pack<Form>(args, to, stream); });
}

}  // namespace switchyard::cuda
