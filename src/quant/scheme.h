// SPDX-License-Identifier: Apache-2.0
//
// scheme.h: the valid schemes, and checks that refuse all others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "switchyard/quant.h"
#include "switchyard/scale_layout.h"

namespace switchyard {

/// All schemes that have a name; the first is "none".
std::vector<QuantScheme> named_schemes();

/// Whether each row has scales that are stored separately.
bool has_row_scales(const QuantScheme& scheme);

/// The layouts that a scheme's scales may have, row-major first and swizzled last.
std::vector<ScaleLayout> layouts_of(const QuantScheme& scheme);

/// Refuses a scheme whose fields contradict each other; the message lists its dtype's valid ones.
///
/// Errors: kInvalidArgument; the message starts with `function`.
void check_scheme(const char* function, const QuantScheme& scheme);

/// Refuses a negative `hidden` and, for e2m1, an odd one.
///
/// Errors: kInvalidArgument; the message starts with `function`.
void check_hidden(const char* function, const QuantScheme& scheme, std::int64_t hidden);

/// Bytes of one stored row of elements; `input` is the dtype of simulated elements.
std::size_t row_bytes(const QuantScheme& scheme, std::int64_t hidden, DType input = DType::kBF16);

/// Bytes of the scales of one row; for kTensor, of the one scale.
std::size_t scale_row_bytes(const QuantScheme& scheme, std::int64_t hidden);

}  // namespace switchyard
