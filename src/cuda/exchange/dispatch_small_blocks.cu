// SPDX-License-Identifier: Apache-2.0

#include "cuda/exchange/dispatch_forms.h"
#include "cuda/exchange/dispatch_kernel.cuh"
#include "cuda/exchange/pack_rows.cuh"

namespace switchyard::cuda {
namespace {

template <class Task>
void with_form(const QuantScheme& scheme, const Task& task) {
  if (scheme == schemes::kNvfp4) return task.template operator()<QuantizedForm<schemes::kNvfp4>>();
  if (scheme == schemes::kMxfp4) return task.template operator()<QuantizedForm<schemes::kMxfp4>>();
  if (scheme == schemes::kMxfp8) return task.template operator()<QuantizedForm<schemes::kMxfp8>>();
  if (scheme == schemes::kMxfp6E3M2)
    return task.template operator()<QuantizedForm<schemes::kMxfp6E3M2>>();
  task.template operator()<QuantizedForm<schemes::kMxfp6E2M3>>();
}

}  // namespace

void dispatch_small_blocks(const DispatchArgs& args, Phases phases, bool programmatic,
                           cudaStream_t stream) {
  with_form(args.scheme,
            [&]<class Form>() { launch_form<Form>(args, phases, programmatic, stream); });
}

void pack_small_blocks(const DispatchArgs& args, const PackedRows& to, cudaStream_t stream) {
  with_form(args.scheme, [&]<class Form>() { launch_pack<Form>(args, to, stream); });
}

}  // namespace switchyard::cuda
