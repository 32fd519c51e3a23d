// SPDX-License-Identifier: Apache-2.0
//
// dtype.h: element types of tensors, under the names that the field and safetensors use.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "switchyard/export.h"

namespace switchyard {

/// What an element is.
enum class DType : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kE4M3,  ///< OCP fp8, finite: no infinity, the largest value is 448
  kE5M2,
  kE2M1,  ///< fp4, two per byte, the first in the low nibble
  kE2M3,
  kE3M2,
  kE8M0,  ///< power-of-two scale: value 2^(byte - 127)
  kI8,
  kU8,
  kU16,
  kI32,
  kI64,
};

/// Size of one stored element in bits: 4 for e2m1, 6 for e2m3 and e3m2, otherwise a multiple of 8.
SWITCHYARD_API int bits_of(DType dtype) noexcept;

/// Lower-case name, for example "bf16".
SWITCHYARD_API const char* name_of(DType dtype) noexcept;

/// Inverse of name_of; empty when the name is unknown.
SWITCHYARD_API std::optional<DType> dtype_from_name(std::string_view name) noexcept;

}  // namespace switchyard
