// SPDX-License-Identifier: Apache-2.0

#include "capi/names.h"

#include "quant/scheme.h"

namespace switchyard::capi {

DType wide_dtype_of(const char* name, const char* field) {
  if (name == nullptr) return DType::kBF16;
  const std::optional<DType> dtype = wide_dtype_from_name(name);
  check(dtype.has_value(), "{} is \"{}\", must be bf16, f16 or f32", field, name);
  return *dtype;
}

QuantScheme scheme_of(const char* name, const char* field) {
  if (name == nullptr) return schemes::kNone;
  const std::optional<QuantScheme> scheme = scheme_from_name(name);
  if (!scheme) check(false, "{} is {}", field, must_be(name, scheme_names()));
  return *scheme;
}

QuantScheme wire_scheme_of(const char* name, const char* field, const char* dtype,
                           const char* dtype_field) {
  const std::optional<DType> wide = name == nullptr ? std::nullopt : wide_dtype_from_name(name);
  if (wide) return {*wide};
  QuantScheme scheme = scheme_of(name, field);
  if (dtype == nullptr) return scheme;
  check(!scheme.is_quantized(), "{} is \"{}\", but {} is \"{}\", which has its own", dtype_field,
        dtype, field, name);
  scheme.dtype = wide_dtype_of(dtype, dtype_field);
  return scheme;
}

const char* name_of_scheme(const QuantScheme& scheme) {
  for (const NamedScheme& known : kNamedSchemes) {
    if (known.scheme == scheme || (!known.scheme.is_quantized() && !scheme.is_quantized()))
      return known.name;
  }
  return nullptr;
}

}  // namespace switchyard::capi
