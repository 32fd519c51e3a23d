// SPDX-License-Identifier: Apache-2.0
//
// quant_dtype.h: what the activations or weights of a MoE layer are quantized to, and which pairs
// form an OCP MX scheme.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "switchyard/export.h"

namespace switchyard {

/// vLLM's configurations hold either an element type or the name of a whole format. Both are values
/// here, because their rules differ: kFp8E4M3 is the element type, kFp8 is the name "fp8".
enum class QuantDType : std::uint8_t {
  kNone,     ///< not quantized, or already quantized
  kFp8E4M3,  ///< element type; scales by group shape
  kInt8,     ///< element type; scales by group shape
  kFp8,      ///< "fp8": one scale per tensor; with OCP MX weights only
  kNvfp4,    ///< e2m1; one e4m3 scale per 16 elements, one f32 scale for the tensor
  kMxfp4,    ///< e2m1; one e8m0 scale per 32 elements, as in every kMx format
  kMxfp6E3M2,
  kMxfp6E2M3,
  kMxfp8,      ///< e4m3; not in the OCP set below
  kInt4,       ///< weights only
  kMxfp8E4M3,  ///< this and the next two: in the OCP set, but no builder accepts them
  kMxfp8E5M2,
  kMxint8,
};

/// @{ "none", "fp8_e4m3", "int8", "fp8", "nvfp4", "mxfp4", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp8",
/// "int4", "mxfp8_e4m3", "mxfp8_e5m2", "mxint8".
SWITCHYARD_API const char* name_of(QuantDType dtype) noexcept;
SWITCHYARD_API std::optional<QuantDType> quant_dtype_from_name(std::string_view name) noexcept;
/// @}

/// True for kFp8E4M3 and kInt8, which are number types and not names of formats.
SWITCHYARD_API bool is_element_type(QuantDType dtype) noexcept;

/// True for mxfp4, mxfp6_e3m2, mxfp6_e2m3, mxfp8_e4m3, mxfp8_e5m2 and mxint8.
SWITCHYARD_API bool is_ocp_mx(QuantDType dtype) noexcept;

inline constexpr std::int32_t kOcpMxBlock = 32;  ///< elements that share a scale

/// Pairs of weights and activations that vLLM's fused_moe emulates.
enum class OcpMxScheme : std::uint8_t {
  kWMxfp4,
  kWMxfp4AMxfp4,
  kWMxfp4AMxfp6E3M2,
  kWMxfp4AMxfp6E2M3,
  kWMxfp4AFp8,
  kWMxfp6E3M2,
  kWMxfp6E3M2AMxfp6E3M2,
  kWMxfp6E3M2AFp8,
  kWMxfp6E2M3,
  kWMxfp6E2M3AMxfp6E2M3,
  kWMxfp6E2M3AFp8,
};

/// "w_mxfp4", "w_mxfp4_a_mxfp4", ..., as in vLLM's OCP_MX_Scheme.
SWITCHYARD_API const char* name_of(OcpMxScheme scheme) noexcept;

/// Absent for every pair that is not in the enum, and whenever one of the two is an element type.
/// Mirrors vLLM's OCP_MX_Scheme.from_quant_dtype.
SWITCHYARD_API std::optional<OcpMxScheme> ocp_mx_scheme(QuantDType activation,
                                                        QuantDType weight) noexcept;

}  // namespace switchyard
