// SPDX-License-Identifier: Apache-2.0

#include "switchyard/quant_dtype.h"

#include <set>
#include <string>
#include <tuple>

#include <gtest/gtest.h>

#include "switchyard/quant_config.h"

namespace switchyard {
namespace {

using Q = QuantDType;
constexpr int kNumDTypes = 13;

TEST(QuantDTypeTest, NamesGoBothWays) {
  std::set<std::string> names;
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<Q>(i);
    names.insert(name_of(dtype));
    EXPECT_EQ(quant_dtype_from_name(name_of(dtype)), dtype);
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kNumDTypes));
  EXPECT_STREQ(name_of(static_cast<Q>(kNumDTypes)), "unknown");
  EXPECT_EQ(quant_dtype_from_name("fp9"), std::nullopt);
  EXPECT_STREQ(name_of(Q::kFp8E4M3), "fp8_e4m3");
  EXPECT_STREQ(name_of(Q::kMxint8), "mxint8");
}

// Every pair of dtypes: the eleven of the table, and no others.
TEST(OcpMxSchemeTest, TheWholeTable) {
  const std::set<std::tuple<std::string, std::string, std::string>> table{
      {"none", "mxfp4", "w_mxfp4"},
      {"none", "mxfp6_e3m2", "w_mxfp6_e3m2"},
      {"none", "mxfp6_e2m3", "w_mxfp6_e2m3"},
      {"mxfp4", "mxfp4", "w_mxfp4_a_mxfp4"},
      {"mxfp6_e3m2", "mxfp4", "w_mxfp4_a_mxfp6_e3m2"},
      {"mxfp6_e3m2", "mxfp6_e3m2", "w_mxfp6_e3m2_a_mxfp6_e3m2"},
      {"mxfp6_e2m3", "mxfp4", "w_mxfp4_a_mxfp6_e2m3"},
      {"mxfp6_e2m3", "mxfp6_e2m3", "w_mxfp6_e2m3_a_mxfp6_e2m3"},
      {"fp8", "mxfp4", "w_mxfp4_a_fp8"},
      {"fp8", "mxfp6_e3m2", "w_mxfp6_e3m2_a_fp8"},
      {"fp8", "mxfp6_e2m3", "w_mxfp6_e2m3_a_fp8"}};
  std::set<std::tuple<std::string, std::string, std::string>> found;
  for (int a = 0; a < kNumDTypes; ++a) {
    for (int w = 0; w < kNumDTypes; ++w) {
      const auto scheme = ocp_mx_scheme(static_cast<Q>(a), static_cast<Q>(w));
      if (!scheme.has_value()) continue;
      found.emplace(name_of(static_cast<Q>(a)), name_of(static_cast<Q>(w)), name_of(*scheme));
    }
  }
  EXPECT_EQ(found, table);
}

TEST(OcpMxSchemeTest, OfBuiltConfigurations) {
  const auto name = [](const QuantConfig& config) -> std::string {
    const auto scheme = config.ocp_mx_scheme();
    return scheme.has_value() ? name_of(*scheme) : "none";
  };
  EXPECT_EQ(name(QuantConfig::mxfp4_w4a16({})), "w_mxfp4");
  EXPECT_EQ(name(QuantConfig::mxfp4({})), "w_mxfp4_a_mxfp4");
  EXPECT_EQ(name(QuantConfig::mxfp4_w4a8({})), "w_mxfp4_a_fp8");
  EXPECT_EQ(name(QuantConfig::mxfp4_mxfp8({})), "none");
  EXPECT_EQ(name(QuantConfig::nvfp4({})), "none");
  EXPECT_EQ(name(QuantConfig::fp8_w8a8({})), "none");
  EXPECT_EQ(name(QuantConfig::make({.quant_dtype = Q::kFp8E4M3, .weight_dtype = Q::kMxfp4})),
            "none");
}

}  // namespace
}  // namespace switchyard
