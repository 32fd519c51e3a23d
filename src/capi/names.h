// SPDX-License-Identifier: Apache-2.0
//
// names.h: enums of the C++ interface under their names. NULL stands for the default.
#pragma once

#include <optional>
#include <string_view>

#include "switchyard/dtype.h"
#include "switchyard/quant.h"
#include "switchyard/scale_layout.h"

#include "capi/call.h"
#include "core/enum_names.h"
#include "core/text.h"

namespace switchyard::capi {

/// The value called `name`; nothing for NULL. Errors: kInvalidArgument.
template <NamedEnum T>
std::optional<T> named(const char* name, const char* field) {
  if (name == nullptr) return std::nullopt;
  const std::optional<T> value = enum_from_name<T>(name);
  if (!value) check(false, "{} is {}", field, must_be(name, kEnumTable<T>.names));
  return value;
}
/// The same with a default.
template <NamedEnum T>
T named(const char* name, const char* field, T fallback) {
  return named<T>(name, field).value_or(fallback);
}

/// The dtype of rows that are not quantized; bf16 for NULL.
DType wide_dtype_of(const char* name, const char* field);

QuantScheme scheme_of(const char* name, const char* field);
/// The same, where rows that are not quantized may have another dtype than bf16.
QuantScheme wire_scheme_of(const char* name, const char* field, const char* dtype,
                           const char* dtype_field);
/// NULL when it has no name; "none" whatever the dtype.
const char* name_of_scheme(const QuantScheme& scheme);

}  // namespace switchyard::capi
