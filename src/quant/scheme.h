// SPDX-License-Identifier: Apache-2.0
//
// scheme.h: which schemes exist, and refusal of the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "switchyard/quant.h"
#include "switchyard/scale_layout.h"

namespace switchyard {

/// All that have a name; the first is "none".
std::vector<QuantScheme> named_schemes();

/// Whether the rows of a tensor have scales in memory of their own.
bool has_row_scales(const QuantScheme& scheme);

/// Layouts that the scales of a scheme can have, the plain one first and tiles last.
std::vector<ScaleLayout> layouts_of(const QuantScheme& scheme);

/// Refuses a scheme whose fields contradict each other; the message lists those of its dtype.
///
/// Errors: kInvalidArgument; the message starts with `function`.
void check_scheme(const char* function, const QuantScheme& scheme);

/// Refuses a negative `hidden` and, for e2m1, an odd one.
///
/// Errors: kInvalidArgument; the message starts with `function`.
void check_hidden(const char* function, const QuantScheme& scheme, std::int64_t hidden);

/// Bytes of the elements of one stored row; `input` is the dtype of simulated elements.
std::size_t row_bytes(const QuantScheme& scheme, std::int64_t hidden, DType input = DType::kBF16);

/// Bytes of the scales of one row; for kTensor the one scale.
std::size_t scale_row_bytes(const QuantScheme& scheme, std::int64_t hidden);

}  // namespace switchyard
