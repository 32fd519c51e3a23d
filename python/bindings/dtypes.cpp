// SPDX-License-Identifier: Apache-2.0

#include "dtypes.h"

#include <string_view>

#include "core/fail.h"
#include "errors.h"

namespace switchyard::python {
namespace {

struct Row {
  DType dtype;
  const char* framework_name;  // of numpy, ml_dtypes and torch
  const char* numpy_bits;
  DLPackType dlpack;
};

// Codes of DLPack 1.1: 0 int, 1 uint, 2 float, 4 bfloat, from 10 on fp8, fp6 and fp4.
constexpr Row kRows[] = {
    {DType::kF32, "float32", "<f4", {2, 32}},
    {DType::kF16, "float16", "<f2", {2, 16}},
    {DType::kBF16, "bfloat16", "<u2", {4, 16}},
    {DType::kE4M3, "float8_e4m3fn", "|u1", {10, 8}},
    {DType::kE5M2, "float8_e5m2", "|u1", {12, 8}},
    {DType::kE2M1, "float4_e2m1fn_x2", "|u1", {17, 4}},
    {DType::kE8M0, "float8_e8m0fnu", "|u1", {14, 8}},
    {DType::kI8, "int8", "|i1", {0, 8}},
    {DType::kU8, "uint8", "|u1", {1, 8}},
    {DType::kU16, "uint16", "<u2", {1, 16}},
    {DType::kI32, "int32", "<i4", {0, 32}},
    {DType::kI64, "int64", "<i8", {0, 64}},
};

const Row& row_of(DType dtype) {
  for (const Row& row : kRows) {
    if (row.dtype == dtype) return row;
  }
  fail(Errc::kNotSupported, "tensor: {} has no counterpart in other libraries", name_of(dtype));
}

DType dtype_from_text(std::string_view text) {
  constexpr std::string_view kTorch = "torch.";
  if (text.starts_with(kTorch)) text.remove_prefix(kTorch.size());
  if (const auto own = dtype_from_name(text)) return *own;
  for (const Row& row : kRows) {
    if (text == row.framework_name) return row.dtype;
  }
  fail(Errc::kInvalidArgument,
       "dtype: {}, must be float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, float8_e8m0fnu, "
       "int8, uint8, uint16, int32, int64, float4_e2m1fn_x2 or a name that docs/python.md lists",
       text);
}

// Of an object that is not a name.
DType look_up(nb::handle value) {
  nb::object name = nb::borrow(value);
  if (nb::isinstance<nb::type_object>(value)) {
    name = value.attr("__name__");  // numpy.float32, ml_dtypes.bfloat16
  } else if (nb::hasattr(value, "isnative")) {
    require(nb::cast<bool>(value.attr("isnative")), Errc::kInvalidArgument,
            "dtype: {} is in foreign byte order; convert it first", text_of(value));
    name = value.attr("name");
  } else if (is_array(value)) {
    fail_type("dtype", value, "a dtype or its name");
  }
  return dtype_from_text(text_of(name));
}

}  // namespace

DType dtype_from(nb::handle value) {
  if (nb::isinstance<nb::str>(value)) return dtype_from_text(text_of(value));
  // Dtype objects are few and live on; never released, because the interpreter may be gone first.
  static PyObject* const known = PyDict_New();
  if (PyObject* found = PyDict_GetItem(known, value.ptr())) {
    return static_cast<DType>(PyLong_AsLong(found));
  }
  const DType dtype = look_up(value);
  if (PyDict_SetItem(known, value.ptr(), nb::int_(static_cast<int>(dtype)).ptr()) != 0) {
    PyErr_Clear();  // not hashable: looked up each time
  }
  return dtype;
}

const char* numpy_bits(DType dtype) { return row_of(dtype).numpy_bits; }

DLPackType dlpack_type(DType dtype) { return row_of(dtype).dlpack; }

DType dtype_from_dlpack(std::uint8_t code, std::uint8_t bits, std::uint16_t lanes) {
  for (const Row& row : kRows) {
    if (row.dlpack.code == code && row.dlpack.bits == bits && lanes == 1) return row.dtype;
  }
  fail(Errc::kInvalidArgument,
       "tensor: DLPack type code {} with {} bits and {} lanes is none that the library has", code,
       bits, lanes);
}

}  // namespace switchyard::python
