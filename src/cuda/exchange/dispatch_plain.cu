// SPDX-License-Identifier: Apache-2.0
//
// Dispatch of rows that are not quantized on the way: bf16, f16, f32, and codes of callers.

#include "cuda/exchange/dispatch_forms.h"
#include "cuda/exchange/dispatch_kernel.cuh"
#include "cuda/exchange/pack_rows.cuh"

namespace switchyard::cuda {
namespace {

template <class Task>
void with_plain(DType dtype, const Task& task) {
  switch (dtype) {
    case DType::kF32: return task.template operator()<PlainForm<DType::kF32>>();
    case DType::kF16: return task.template operator()<PlainForm<DType::kF16>>();
    default: return task.template operator()<PlainForm<DType::kBF16>>();
  }
}

template <class Task>
void with_stored(DType dtype, const Task& task) {
  if (dtype == DType::kE2M1) return task.template operator()<StoredForm<4>>();
  task.template operator()<StoredForm<8>>();
}

}  // namespace

void dispatch_plain(const DispatchArgs& args, Phases phases, bool programmatic,
                    cudaStream_t stream) {
  with_plain(args.scheme.dtype,
             [&]<class Form>() { launch_form<Form>(args, phases, programmatic, stream); });
}

void dispatch_stored(const DispatchArgs& args, Phases phases, bool programmatic,
                     cudaStream_t stream) {
  with_stored(args.scheme.dtype,
              [&]<class Form>() { launch_form<Form>(args, phases, programmatic, stream); });
}

void pack_plain(const DispatchArgs& args, const PackedRows& to, cudaStream_t stream) {
  with_plain(args.scheme.dtype, [&]<class Form>() { launch_pack<Form>(args, to, stream); });
}

void pack_stored(const DispatchArgs& args, const PackedRows& to, cudaStream_t stream) {
  with_stored(args.scheme.dtype, [&]<class Form>() { launch_pack<Form>(args, to, stream); });
}

}  // namespace switchyard::cuda
