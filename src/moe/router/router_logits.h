// SPDX-License-Identifier: Apache-2.0
//
// router_logits.h: the product behind switchyard::router_logits, arguments checked by the caller.
#pragma once

#include "switchyard/tensor.h"

namespace switchyard {

/// logits [T, E], contiguous = hidden [T, H] x gate [E, H].
void compute_router_logits(const TensorView& hidden, const TensorView& gate, float* logits);

}  // namespace switchyard
