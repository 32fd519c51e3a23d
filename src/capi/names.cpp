// SPDX-License-Identifier: Apache-2.0

#include "capi/names.h"

#include <array>

namespace switchyard::capi {
namespace {

constexpr std::array kSchemes{
    "none",      "fp8_block",  "fp8_block_deepep", "fp8_ue8m0",   "fp8_ue8m0_deepep",
    "fp8_token", "fp8_tensor", "int8_token",       "int8_tensor", "int8_block",
    "nvfp4",     "mxfp4",      "mxfp6_e3m2",       "mxfp6_e2m3",  "mxfp8"};

}  // namespace

QuantScheme scheme_of(const char* name, const char* field) {
  return named(name, field, schemes::kNone, scheme_from_name,
               "none, fp8_block, fp8_block_deepep, fp8_ue8m0, fp8_ue8m0_deepep, fp8_token, "
               "fp8_tensor, int8_token, int8_tensor, int8_block, nvfp4, mxfp4, mxfp6_e3m2, "
               "mxfp6_e2m3 or mxfp8");
}

QuantScheme wire_scheme_of(const char* name, const char* field, const char* dtype,
                           const char* dtype_field) {
  const std::optional<DType> wide = name == nullptr ? std::nullopt : dtype_from_name(name);
  if (wide == DType::kBF16 || wide == DType::kF16 || wide == DType::kF32) return {*wide};
  QuantScheme scheme = scheme_of(name, field);
  if (dtype == nullptr) return scheme;
  check(!scheme.is_quantized(), "{} is \"{}\", but {} is \"{}\", which has its own", dtype_field,
        dtype, field, name);
  scheme.dtype = named(dtype, dtype_field, DType::kBF16, dtype_from_name, "bf16, f16 or f32");
  return scheme;
}

const char* name_of_scheme(const QuantScheme& scheme) {
  if (!scheme.is_quantized()) return kSchemes[0];
  for (const char* name : kSchemes) {
    if (scheme_from_name(name) == scheme) return name;
  }
  return nullptr;
}

ScaleLayout scale_layout_of(const char* name, const char* field) {
  return named(name, field, ScaleLayout::kRowMajor, scale_layout_from_name,
               "row_major, column_major, column_major_aligned or swizzled");
}

Layout layout_of(const char* name) {
  return named(name, "layout", Layout::kExpanded, layout_from_name,
               "batched, expanded, compact, by_rank or all_gather");
}

std::optional<Reduce> reduce_of(const char* name) {
  if (name == nullptr) return std::nullopt;
  return named(name, "reduce", Reduce::kPerRank, reduce_from_name,
               "per_rank, per_expert or per_host");
}

}  // namespace switchyard::capi
