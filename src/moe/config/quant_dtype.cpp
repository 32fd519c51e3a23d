// SPDX-License-Identifier: Apache-2.0

#include "switchyard/quant_dtype.h"

#include <array>

namespace switchyard {
namespace {

using Q = QuantDType;

struct OcpMxRow {
  OcpMxScheme scheme;
  QuantDType activation;
  QuantDType weight;
  const char* name;
};

// Indexed by OcpMxScheme.
constexpr std::array<OcpMxRow, 11> kOcpMx{
    {{OcpMxScheme::kWMxfp4, Q::kNone, Q::kMxfp4, "w_mxfp4"},
     {OcpMxScheme::kWMxfp4AMxfp4, Q::kMxfp4, Q::kMxfp4, "w_mxfp4_a_mxfp4"},
     {OcpMxScheme::kWMxfp4AMxfp6E3M2, Q::kMxfp6E3M2, Q::kMxfp4, "w_mxfp4_a_mxfp6_e3m2"},
     {OcpMxScheme::kWMxfp4AMxfp6E2M3, Q::kMxfp6E2M3, Q::kMxfp4, "w_mxfp4_a_mxfp6_e2m3"},
     {OcpMxScheme::kWMxfp4AFp8, Q::kFp8, Q::kMxfp4, "w_mxfp4_a_fp8"},
     {OcpMxScheme::kWMxfp6E3M2, Q::kNone, Q::kMxfp6E3M2, "w_mxfp6_e3m2"},
     {OcpMxScheme::kWMxfp6E3M2AMxfp6E3M2, Q::kMxfp6E3M2, Q::kMxfp6E3M2,
      "w_mxfp6_e3m2_a_mxfp6_e3m2"},
     {OcpMxScheme::kWMxfp6E3M2AFp8, Q::kFp8, Q::kMxfp6E3M2, "w_mxfp6_e3m2_a_fp8"},
     {OcpMxScheme::kWMxfp6E2M3, Q::kNone, Q::kMxfp6E2M3, "w_mxfp6_e2m3"},
     {OcpMxScheme::kWMxfp6E2M3AMxfp6E2M3, Q::kMxfp6E2M3, Q::kMxfp6E2M3,
      "w_mxfp6_e2m3_a_mxfp6_e2m3"},
     {OcpMxScheme::kWMxfp6E2M3AFp8, Q::kFp8, Q::kMxfp6E2M3, "w_mxfp6_e2m3_a_fp8"}}};

}  // namespace

bool is_element_type(QuantDType dtype) noexcept {
  return dtype == Q::kFp8E4M3 || dtype == Q::kInt8;
}

bool is_ocp_mx(QuantDType dtype) noexcept {
  switch (dtype) {
    case Q::kMxfp4:
    case Q::kMxfp6E3M2:
    case Q::kMxfp6E2M3:
    case Q::kMxfp8E4M3:
    case Q::kMxfp8E5M2:
    case Q::kMxint8: return true;
    default: return false;
  }
}

const char* name_of(OcpMxScheme scheme) noexcept {
  const auto index = static_cast<std::size_t>(scheme);
  return index < kOcpMx.size() ? kOcpMx[index].name : "unknown";
}

std::optional<OcpMxScheme> ocp_mx_scheme(QuantDType activation, QuantDType weight) noexcept {
  for (const OcpMxRow& row : kOcpMx) {
    if (row.activation == activation && row.weight == weight) return row.scheme;
  }
  return std::nullopt;
}

}  // namespace switchyard
