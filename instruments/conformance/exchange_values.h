// SPDX-License-Identifier: Apache-2.0
//
// exchange_values.h: values of the oracle as bytes, and what formats of a wire do to them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "switchyard/quant.h"
#include "switchyard/tensor.h"

#include "conformance/compare.h"
#include "reference/reference.h"

namespace switchyard::conformance {

using Bytes = std::vector<std::byte>;

/// Elements as bf16, f16 or f32, which must hold them exactly; rows `stride` elements apart, what
/// is between them filled with 5A. 0: contiguous.
Bytes encode(DType dtype, const reference::Table<float>& table, std::int64_t stride = 0);

reference::Table<float> rounded(DType dtype, reference::Table<float> table);

/// Rows after a trip in this format.
reference::Table<float> through_wire(const QuantScheme& scheme,
                                     const reference::Table<float>& table);

/// Elements of one row as the scheme stores them.
std::size_t element_row_bytes(const QuantScheme& scheme, std::int64_t hidden);
/// Stored elements, row after row.
Bytes stored_bytes(const QuantScheme& scheme, const reference::QuantizedRows& rows);

/// Stored scales, row after row.
Bytes scale_bytes(const QuantScheme& scheme, const reference::QuantizedRows& rows);

/// Where scale `s` of row `row` lies, in scales; `block_rows` rows are laid out together.
std::int64_t scale_index(ScaleLayout layout, std::int64_t block_rows, std::int64_t num_scales,
                         std::int64_t row, std::int64_t s);

/// A tensor in which an element that nobody writes is noticed.
Tensor poisoned(DType dtype, std::int64_t num_rows, std::int64_t num_columns);

}  // namespace switchyard::conformance
