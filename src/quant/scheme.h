// SPDX-License-Identifier: Apache-2.0
//
// scheme.h: which schemes exist, and refusal of the others.
#pragma once

#include "switchyard/quant.h"

namespace switchyard {

/// Refuses a scheme whose fields contradict each other or whose dtype has no quantizer.
///
/// Errors: kInvalidArgument; the message starts with `function`.
void check_scheme(const char* function, const QuantScheme& scheme);

}  // namespace switchyard
