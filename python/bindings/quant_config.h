// SPDX-License-Identifier: Apache-2.0
//
// quant_config.h: QuantConfig in Python, and enums whose names the library has as fields of
// configurations.
#pragma once

#include <string>
#include <vector>

#include "switchyard/prepare_finalize_factory.h"

#include "config.h"
#include "core/fail.h"

#include <nanobind/nanobind.h>

namespace switchyard::python {

// Enums whose names the library has.
template <typename T>
struct LibraryEnum;
template <>
struct LibraryEnum<All2AllBackend> {
  static constexpr auto kFromName = &all2all_backend_from_name;
  static constexpr const char* kWhat = "all2all_backend";
};
template <>
struct LibraryEnum<MoEActivation> {
  static constexpr auto kFromName = &moe_activation_from_name;
  static constexpr const char* kWhat = "activation";
};
template <>
struct LibraryEnum<QuantDType> {
  static constexpr auto kFromName = &quant_dtype_from_name;
  static constexpr const char* kWhat = "quant_dtype";
};

template <typename T>
requires requires { LibraryEnum<T>::kWhat; }
struct Field<T> {
  static T from(nb::handle value) {
    const std::string name = value.is_none() ? "none" : nb::cast<std::string>(value);
    const auto found = LibraryEnum<T>::kFromName(name);
    require(found.has_value(), Errc::kInvalidArgument,
            "{}: \"{}\" is no name of one; docs/configuration.md lists them", LibraryEnum<T>::kWhat,
            name);
    return *found;
  }
  static nb::object to(T value) { return nb::str(name_of(value)); }
  static std::string type() { return "str"; }
};

/// Keeps the arrays that it was made from.
struct PyQuantConfig {
  QuantConfig config;
  std::vector<nb::object> held{};
};

}  // namespace switchyard::python
