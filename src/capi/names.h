// SPDX-License-Identifier: Apache-2.0
//
// names.h: enums of the C++ interface under their names. NULL stands for the default.
#pragma once

#include <optional>
#include <string_view>

#include "switchyard/dtype.h"
#include "switchyard/layout.h"
#include "switchyard/quant.h"
#include "switchyard/scale_layout.h"

#include "capi/call.h"

namespace switchyard::capi {

/// What `from_name` makes of `name`, or `fallback` for NULL. Errors: kInvalidArgument, with
/// `known`.
template <typename T, typename FromName>
T named(const char* name, const char* field, T fallback, FromName from_name, const char* known) {
  if (name == nullptr) return fallback;
  const std::optional<T> value = from_name(std::string_view(name));
  check(value.has_value(), "{} is \"{}\", must be {}", field, name, known);
  return *value;
}

QuantScheme scheme_of(const char* name, const char* field);
/// The same, where rows that are not quantized may have another dtype than bf16.
QuantScheme wire_scheme_of(const char* name, const char* field, const char* dtype,
                           const char* dtype_field);
/// NULL when it has no name; "none" whatever the dtype.
const char* name_of_scheme(const QuantScheme& scheme);
ScaleLayout scale_layout_of(const char* name, const char* field);
Layout layout_of(const char* name);
std::optional<Reduce> reduce_of(const char* name);

}  // namespace switchyard::capi
