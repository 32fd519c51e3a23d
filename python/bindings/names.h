// SPDX-License-Identifier: Apache-2.0
//
// names.h: enums and schemes by their names: Python has no enum classes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "switchyard/layout.h"
#include "switchyard/permute.h"
#include "switchyard/prepare_finalize.h"
#include "switchyard/quant.h"
#include "switchyard/weight_and_reduce.h"

#include "core/fail.h"
#include "errors.h"

#include <nanobind/nanobind.h>

namespace switchyard::python {

namespace nb = nanobind;

/// In the order of the enum's values. `kWhat`: for messages.
template <typename T>
struct EnumNames;

template <typename T>
concept NamedEnum = requires {
  EnumNames<T>::kNames;
};

template <>
struct EnumNames<Layout> {
  static constexpr const char* kWhat = "layout";
  static constexpr const char* kNames[] = {"batched", "expanded", "compact", "by_rank",
                                           "all_gather"};
};
template <>
struct EnumNames<Overflow> {
  static constexpr const char* kWhat = "overflow";
  static constexpr const char* kNames[] = {"error", "drop"};
};
template <>
struct EnumNames<Reduce> {
  static constexpr const char* kWhat = "reduce";
  static constexpr const char* kNames[] = {"per_expert", "per_rank", "per_host"};
};
template <>
struct EnumNames<ScaleLayout> {
  static constexpr const char* kWhat = "scale_layout";
  static constexpr const char* kNames[] = {"row_major", "column_major", "column_major_aligned",
                                           "swizzled"};
};
template <>
struct EnumNames<ScaleGroup> {
  static constexpr const char* kWhat = "group";
  static constexpr const char* kNames[] = {"none", "tensor", "token", "block"};
};
template <>
struct EnumNames<ScaleRule> {
  static constexpr const char* kWhat = "rule";
  static constexpr const char* kNames[] = {"divide", "multiply", "mx", "two_level"};
};
template <>
struct EnumNames<ScaleFormat> {
  static constexpr const char* kWhat = "scale_format";
  static constexpr const char* kNames[] = {"f32", "f32_power_of_two", "e8m0_packed", "e8m0",
                                           "e4m3"};
};
template <>
struct EnumNames<CompatPadding> {
  static constexpr const char* kWhat = "compat_padding";
  static constexpr const char* kNames[] = {"none", "owner"};
};
template <>
struct EnumNames<PrepareKind> {
  static constexpr const char* kWhat = "kind";
  static constexpr const char* kNames[] = {"low_latency", "elastic_decode", "elastic_prefill",
                                           "all_gather",  "all_to_all",     "all_to_all_one_sided",
                                           "local"};
};
template <>
struct EnumNames<WeightAndReduceKind> {
  static constexpr const char* kWhat = "weight_and_reduce";
  static constexpr const char* kNames[] = {"delegate", "no_op", "contiguous", "naive_batched"};
};

template <NamedEnum T>
const char* enum_name(T value) {
  return EnumNames<T>::kNames[static_cast<std::size_t>(value)];
}

/// "'batched', 'expanded'", or for stubs "Literal[...]".
template <NamedEnum T>
std::string names_of() {
  std::string text;
  for (const char* name : EnumNames<T>::kNames)
    text += (text.empty() ? "'" : ", '") + std::string(name) + "'";
  return text;
}
template <NamedEnum T>
std::string literal_of() {
  return "Literal[" + names_of<T>() + "]";
}

template <NamedEnum T>
T enum_from(std::string_view name) {
  std::size_t value = 0;
  for (const char* known : EnumNames<T>::kNames) {
    if (name == known) return static_cast<T>(value);
    ++value;
  }
  fail(Errc::kInvalidArgument, "{}: \"{}\", must be one of {}", EnumNames<T>::kWhat, name,
       names_of<T>());
}

/// The schemes that have a name, and "bf16", "f16" and "f32": not quantized, sent as that.
inline std::optional<QuantScheme> named_scheme(std::string_view name) {
  const auto dtype = dtype_from_name(name);
  if (dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32)
    return QuantScheme{*dtype};
  return scheme_from_name(name);
}

/// A QuantScheme, or the name of one.
inline QuantScheme scheme_from(nb::handle value) {
  QuantScheme scheme;
  if (nb::try_cast(value, scheme)) return scheme;
  if (!nb::isinstance<nb::str>(value)) fail_type("scheme", value, "a QuantScheme or its name");
  const std::string name = nb::str(value).c_str();
  const auto found = named_scheme(name);
  require(
      found.has_value(), Errc::kInvalidArgument,
      "scheme: \"{}\", must be a QuantScheme or one of none, bf16, f16, f32, fp8_block, "
      "fp8_block_deepep, fp8_ue8m0, "
      "fp8_ue8m0_deepep, fp8_token, fp8_tensor, int8_token, int8_tensor, int8_block, nvfp4, mxfp4, "
      "mxfp6_e3m2, mxfp6_e2m3, mxfp8",
      name);
  return *found;
}

}  // namespace switchyard::python
