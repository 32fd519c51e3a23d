// SPDX-License-Identifier: Apache-2.0
//
// names.h: enums and schemes by their names: Python has no enum classes.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/layout.h"
#include "switchyard/permute.h"
#include "switchyard/prepare_finalize.h"
#include "switchyard/quant.h"
#include "switchyard/weight_and_reduce.h"

#include "core/enum_names.h"
#include "core/fail.h"
#include "core/text.h"
#include "errors.h"
#include "quant/scheme.h"

#include <nanobind/nanobind.h>

namespace switchyard::python {

namespace nb = nanobind;

/// For stubs: "Literal['batched', 'expanded']".
template <NamedEnum T>
std::string literal_of() {
  std::string text;
  for (const std::string_view name : kEnumTable<T>.names)
    text += fmt::format("{}'{}'", text.empty() ? "" : ", ", name);
  return "Literal[" + text + "]";
}

template <NamedEnum T>
T enum_from(std::string_view name) {
  const std::optional<T> value = enum_from_name<T>(name);
  if (!value)
    fail(Errc::kInvalidArgument, "{}: {}", kEnumTable<T>.what, must_be(name, kEnumTable<T>.names));
  return *value;
}

/// The schemes that have a name, and "bf16", "f16" and "f32": not quantized, sent as that.
inline std::optional<QuantScheme> named_scheme(std::string_view name) {
  const std::optional<DType> dtype = wide_dtype_from_name(name);
  return dtype ? QuantScheme{*dtype} : scheme_from_name(name);
}

/// A QuantScheme, or the name of one.
inline QuantScheme scheme_from(nb::handle value) {
  QuantScheme scheme;
  if (nb::try_cast(value, scheme)) return scheme;
  if (!nb::isinstance<nb::str>(value)) fail_type("scheme", value, "a QuantScheme or its name");
  const std::string name = nb::str(value).c_str();
  const auto found = named_scheme(name);
  if (!found) {
    std::vector<std::string_view> names = scheme_names();
    names.insert(names.end(), {"bf16", "f16", "f32"});
    fail(Errc::kInvalidArgument, "scheme: {}", must_be(name, names));
  }
  return *found;
}

}  // namespace switchyard::python
