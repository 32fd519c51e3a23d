// SPDX-License-Identifier: Apache-2.0
//
// no_cutlass.cpp: in place of cutlass.cpp and grouped_product.cu, in builds without CUTLASS.

#include "core/fail.h"
#include "cuda/experts/expert_blas.h"

namespace switchyard::cuda {

std::unique_ptr<ExpertBlas> make_cutlass(Device) {
  fail(Errc::kNotAvailable,
       "cutlass: this build has no CUTLASS, or not for compute capability 9.0; use \"cublas\"");
}

}  // namespace switchyard::cuda
