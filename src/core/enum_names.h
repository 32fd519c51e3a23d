// SPDX-License-Identifier: Apache-2.0
//
// enum_names.h: the names of enums, each written once. Messages, JSON, the command line, C and
// Python read these tables, and what takes a value from outside checks it against them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace switchyard {

enum class ActivationFormat : std::uint8_t;
enum class ActivationKind : std::uint8_t;
enum class All2AllBackend : std::uint8_t;
enum class CompatPadding : std::uint8_t;
enum class GroupSelection : std::uint8_t;
enum class Layout : std::uint8_t;
enum class LogLevel;
enum class MoEActivation : std::uint8_t;
enum class Overflow : std::uint8_t;
enum class PlacementStrategy : std::uint8_t;
enum class PrepareKind : std::uint8_t;
enum class QuantDType : std::uint8_t;
enum class Reduce : std::uint8_t;
enum class ScaleFormat : std::uint8_t;
enum class ScaleGroup : std::uint8_t;
enum class ScaleLayout : std::uint8_t;
enum class ScaleRule : std::uint8_t;
enum class Scoring : std::uint8_t;
enum class SharedExpertsOrder : std::uint8_t;
enum class WeightAndReduceKind : std::uint8_t;

/// `names` are those of the values 0, 1, ...; every one ends with a zero byte. `what`: the field in
/// messages.
template <std::size_t N>
struct EnumTable {
  const char* what;
  std::array<std::string_view, N> names;
};

template <typename... Names>
consteval EnumTable<sizeof...(Names)> enum_table(const char* what, Names... names) {
  return {what, {names...}};
}

template <typename T>
inline constexpr int kEnumTable = 0;

template <typename T>
concept NamedEnum = requires {
  kEnumTable<T>.names;
};

template <>
inline constexpr auto kEnumTable<ActivationFormat> = enum_table("activation_format", "standard",
                                                                "batched");
template <>
inline constexpr auto kEnumTable<ActivationKind> = enum_table("activation", "silu_mul",
                                                              "clamped_swiglu");
template <>
inline constexpr auto kEnumTable<All2AllBackend> = enum_table(
    "all2all_backend", "allgather_reducescatter", "naive", "deepep_high_throughput",
    "deepep_low_latency", "deepep_v2", "flashinfer_nvlink_two_sided", "flashinfer_all2allv",
    "flashinfer_nvlink_one_sided", "mori_high_throughput", "mori_low_latency", "nixl_ep", "pplx");
template <>
inline constexpr auto kEnumTable<CompatPadding> = enum_table("compat_padding", "none", "owner");
template <>
inline constexpr auto kEnumTable<GroupSelection> = enum_table("group_selection", "none", "max",
                                                              "top2_sum");
template <>
inline constexpr auto kEnumTable<Layout> = enum_table("layout", "batched", "expanded", "compact",
                                                      "by_rank", "all_gather");
template <>
inline constexpr auto kEnumTable<LogLevel> = enum_table("level", "error", "warn", "info", "debug",
                                                        "trace", "off");
template <>
inline constexpr auto kEnumTable<MoEActivation> = enum_table("activation", "silu", "gelu",
                                                             "swigluoai", "silu_no_mul",
                                                             "gelu_no_mul", "relu2_no_mul");
template <>
inline constexpr auto kEnumTable<Overflow> = enum_table("overflow", "error", "drop");
template <>
inline constexpr auto kEnumTable<PlacementStrategy> = enum_table("strategy", "linear",
                                                                 "round_robin");
template <>
inline constexpr auto kEnumTable<PrepareKind> = enum_table("kind", "low_latency", "elastic_decode",
                                                           "elastic_prefill", "all_gather",
                                                           "all_to_all", "all_to_all_one_sided",
                                                           "local");
template <>
inline constexpr auto kEnumTable<QuantDType> = enum_table("quant_dtype", "none", "fp8_e4m3", "int8",
                                                          "fp8", "nvfp4", "mxfp4", "mxfp6_e3m2",
                                                          "mxfp6_e2m3", "mxfp8", "int4",
                                                          "mxfp8_e4m3", "mxfp8_e5m2", "mxint8");
template <>
inline constexpr auto kEnumTable<Reduce> = enum_table("reduce", "per_expert", "per_rank",
                                                      "per_host");
template <>
inline constexpr auto kEnumTable<ScaleFormat> = enum_table("scale_format", "f32",
                                                           "f32_power_of_two", "e8m0_packed",
                                                           "e8m0", "e4m3");
template <>
inline constexpr auto kEnumTable<ScaleGroup> = enum_table("group", "none", "tensor", "token",
                                                          "block");
template <>
inline constexpr auto kEnumTable<ScaleLayout> = enum_table("scale_layout", "row_major",
                                                           "column_major", "column_major_aligned",
                                                           "swizzled");
template <>
inline constexpr auto kEnumTable<ScaleRule> = enum_table("rule", "divide", "multiply", "mx",
                                                         "two_level");
template <>
inline constexpr auto kEnumTable<Scoring> = enum_table("scoring", "softmax", "sigmoid",
                                                       "sparse_mixer");
template <>
inline constexpr auto kEnumTable<SharedExpertsOrder> = enum_table("shared_order", "none",
                                                                  "no_overlap",
                                                                  "mk_internal_overlapped");
template <>
inline constexpr auto kEnumTable<WeightAndReduceKind> = enum_table("weight_and_reduce", "delegate",
                                                                   "no_op", "contiguous",
                                                                   "naive_batched");

/// "unknown" for a value outside the table.
template <NamedEnum T>
constexpr const char* enum_name(T value) noexcept {
  const auto& names = kEnumTable<T>.names;
  const auto index = static_cast<std::size_t>(value);
  return index < names.size() ? names[index].data() : "unknown";
}

template <NamedEnum T>
constexpr std::optional<T> enum_from_name(std::string_view name) noexcept {
  const auto& names = kEnumTable<T>.names;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (name == names[i]) return static_cast<T>(i);
  }
  return std::nullopt;
}

[[noreturn]] void refuse_enum(const char* function, const char* what, std::size_t value,
                              std::span<const std::string_view> names);

/// Errors: kInvalidArgument: the value is outside the table.
template <NamedEnum T>
void require_enum(const char* function, T value) {
  const auto& table = kEnumTable<T>;
  const auto index = static_cast<std::size_t>(value);
  if (index >= table.names.size()) refuse_enum(function, table.what, index, table.names);
}

}  // namespace switchyard
