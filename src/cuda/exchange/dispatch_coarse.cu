// SPDX-License-Identifier: Apache-2.0

#include "cuda/exchange/dispatch_forms.h"
#include "cuda/exchange/dispatch_kernel.cuh"
#include "cuda/exchange/pack_rows.cuh"

namespace switchyard::cuda {
namespace {

template <class Task>
void with_form(const QuantScheme& scheme, const Task& task) {
  if (scheme == schemes::kFp8Token)
    return task.template operator()<QuantizedForm<schemes::kFp8Token>>();
  if (scheme == schemes::kFp8Tensor)
    return task.template operator()<QuantizedForm<schemes::kFp8Tensor>>();
  if (scheme == schemes::kInt8Token)
    return task.template operator()<QuantizedForm<schemes::kInt8Token>>();
  if (scheme == schemes::kInt8Tensor)
    return task.template operator()<QuantizedForm<schemes::kInt8Tensor>>();
  task.template operator()<QuantizedForm<schemes::kInt8Block>>();
}

}  // namespace

void dispatch_coarse(const DispatchArgs& args, Phases phases, bool programmatic,
                     cudaStream_t stream) {
  with_form(args.scheme,
            [&]<class Form>() { launch_form<Form>(args, phases, programmatic, stream); });
}

void pack_coarse(const DispatchArgs& args, const PackedRows& to, cudaStream_t stream) {
  with_form(args.scheme, [&]<class Form>() { launch_pack<Form>(args, to, stream); });
}

}  // namespace switchyard::cuda
