// SPDX-License-Identifier: Apache-2.0
//
// dtypes.h: element types by their names here, in numpy with ml_dtypes, in torch, and in DLPack.
#pragma once

#include <cstdint>

#include "switchyard/dtype.h"

#include <nanobind/nanobind.h>

namespace switchyard::python {

namespace nb = nanobind;

/// A dtype object of numpy or torch, or a name: "bf16", "bfloat16", "float8_e4m3fn", "uint8".
/// Errors: kInvalidArgument (a type that the library does not have, numbers in foreign byte order).
DType dtype_from(nb::handle value);

/// For numpy's __array_interface__: "<f4"; of types that numpy lacks the bits, "<u2" or "|u1".
const char* numpy_bits(DType dtype);

/// DLPack's code and bits of a dtype.
struct DLPackType {
  std::uint8_t code;
  std::uint8_t bits;
};
DLPackType dlpack_type(DType dtype);
/// Errors: kInvalidArgument, with what the tensor has.
DType dtype_from_dlpack(std::uint8_t code, std::uint8_t bits, std::uint16_t lanes);

}  // namespace switchyard::python
