// SPDX-License-Identifier: Apache-2.0
//
// quant_config.h: QuantConfig in Python.
#pragma once

#include <string>
#include <vector>

#include "switchyard/prepare_finalize_factory.h"

#include "config.h"
#include "core/fail.h"

#include <nanobind/nanobind.h>

namespace switchyard::python {

template <>
struct Field<QuantDType> {
  static QuantDType from(nb::handle value) {
    return value.is_none() ? QuantDType::kNone
                           : enum_from<QuantDType>(nb::cast<std::string>(value));
  }
  static nb::object to(QuantDType value) { return nb::str(enum_name(value)); }
  static std::string type() { return literal_of<QuantDType>() + " | None"; }
};

template <>
struct Field<BlockShape> {
  static BlockShape from(nb::handle value) {
    return {nb::cast<std::int32_t>(value[0]), nb::cast<std::int32_t>(value[1])};
  }
  static nb::object to(const BlockShape& value) { return nb::make_tuple(value[0], value[1]); }
  static std::string type() { return "tuple[int, int]"; }
};

/// Keeps the arrays that it was made from.
struct PyQuantConfig {
  QuantConfig config;
  std::vector<nb::object> held{};
};

}  // namespace switchyard::python
