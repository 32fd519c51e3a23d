// SPDX-License-Identifier: Apache-2.0
//
// router_logits.h: the matrix product of switchyard::router_logits; the caller checks the
// arguments.
#pragma once

#include "switchyard/tensor.h"

namespace switchyard {

/// logits [T, E], contiguous, = hidden [T, H] x gate^T, where gate is [E, H].
void compute_router_logits(const TensorView& hidden, const TensorView& gate, float* logits);

}  // namespace switchyard
