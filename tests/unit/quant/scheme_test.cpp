// SPDX-License-Identifier: Apache-2.0

#include "quant/scheme.h"

#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "switchyard/quant.h"

#include "support/errors.h"

namespace switchyard {
namespace {

constexpr const char* kNames[] = {
    "none",      "fp8_block",  "fp8_block_deepep", "fp8_ue8m0",   "fp8_ue8m0_deepep",
    "fp8_token", "fp8_tensor", "int8_token",       "int8_tensor", "int8_block",
    "nvfp4",     "mxfp4",      "mxfp6_e3m2",       "mxfp6_e2m3",  "mxfp8"};

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

void expect_refused(const QuantScheme& scheme, const std::string& phrase) {
  test::expect_invalid(phrase, [&] { check_scheme("quantize", scheme); });
}

TEST(SchemeTest, NamesRoundTripAndAreMeaningful) {
  for (const char* name : kNames) {
    const auto scheme = scheme_from_name(name);
    ASSERT_TRUE(scheme.has_value()) << name;
    EXPECT_EQ(name_of(*scheme), name);
    EXPECT_NO_THROW(check_scheme("test", *scheme)) << name;
  }
  EXPECT_EQ(scheme_from_name("fp8"), std::nullopt);
  EXPECT_EQ(scheme_from_name("fp8_block_deepep")->rule, ScaleRule::kMultiply);
  QuantScheme unnamed = schemes::kFp8Block;
  unnamed.block = 64;
  EXPECT_EQ(name_of(unnamed), "e4m3, one scale per block of 64, divide rule, f32 scales");
}

TEST(SchemeTest, CountsScales) {
  EXPECT_EQ(num_scales(schemes::kNone, 7168), 0);
  EXPECT_EQ(num_scales(schemes::kFp8Tensor, 7168), 1);
  EXPECT_EQ(num_scales(schemes::kInt8Token, 7168), 1);
  EXPECT_EQ(num_scales(schemes::kFp8Block, 7168), 56);
  EXPECT_EQ(num_scales(schemes::kFp8Block, 600), 5);
  EXPECT_EQ(num_scales(schemes::kFp8Ue8m0, 7168), 14);
  EXPECT_EQ(num_scales(schemes::kFp8Ue8m0, 600), 2);
  EXPECT_EQ(num_scales(schemes::kNvfp4, 600), 38);
  EXPECT_EQ(num_scales(schemes::kMxfp4, 600), 19);
  EXPECT_EQ(num_scales(schemes::kMxfp8, 7168), 224);
  EXPECT_EQ(num_scales(schemes::kMxfp6E2M3, 7168), 0);
  EXPECT_EQ(num_scales(schemes::kFp8Block, 0), 0);
  EXPECT_EQ(num_scales(schemes::kFp8Block, kMax), std::int64_t{1} << 56);
}

TEST(SchemeTest, StatesBytesAndDTypes) {
  EXPECT_EQ(row_bytes(schemes::kNvfp4, 7168), 3584u);
  EXPECT_EQ(scale_row_bytes(schemes::kNvfp4, 7168), 448u);
  EXPECT_EQ(scale_dtype(schemes::kNvfp4), DType::kE4M3);
  EXPECT_EQ(row_bytes(schemes::kMxfp8, 7168), 7168u);
  EXPECT_EQ(scale_row_bytes(schemes::kMxfp8, 7168), 224u);
  EXPECT_EQ(scale_dtype(schemes::kMxfp8), DType::kE8M0);
  EXPECT_EQ(row_bytes(schemes::kInt8Block, 130), 130u);
  EXPECT_EQ(scale_row_bytes(schemes::kInt8Block, 130), 8u);
  EXPECT_EQ(row_bytes(schemes::kMxfp6E3M2, 100, DType::kF32), 400u);
  EXPECT_EQ(scale_row_bytes(schemes::kMxfp6E3M2, 100), 0u);
  EXPECT_EQ(stored_dtype(schemes::kMxfp6E3M2, DType::kF16), DType::kF16);
  EXPECT_EQ(stored_dtype(schemes::kMxfp4, DType::kF16), DType::kE2M1);
}

TEST(SchemeTest, RefusesContradictions) {
  QuantScheme scheme = schemes::kFp8Ue8m0;
  scheme.block = 64;
  expect_refused(scheme, "quantize: block is 64 for e4m3 with packed e8m0 scales, must be 128");
  scheme = schemes::kFp8Block;
  scheme.block = 0;
  expect_refused(scheme, "block is 0, must be at least 1 element");
  scheme = schemes::kNvfp4;
  scheme.block = 32;
  expect_refused(scheme, "block is 32 for e2m1 with e4m3 scales, must be 16");
  scheme = schemes::kMxfp8;
  scheme.block = 16;
  expect_refused(scheme, "must be 32");
  scheme = schemes::kFp8Token;
  scheme.rule = ScaleRule::kMultiply;
  expect_refused(scheme,
                 "e4m3, one scale per token, multiply rule, f32 scales, must be e4m3, one scale");
  scheme = schemes::kInt8Block;
  scheme.rule = ScaleRule::kMultiply;
  expect_refused(scheme, "multiply rule");
  scheme = schemes::kMxfp4;
  scheme.scale_format = ScaleFormat::kF32;
  expect_refused(scheme, "mx rule, f32 scales, must be e2m1");
  scheme = schemes::kMxfp4;
  scheme.group = ScaleGroup::kToken;
  expect_refused(scheme, "one scale per token");
  scheme = schemes::kFp8Token;
  scheme.dtype = DType::kE5M2;
  expect_refused(scheme, "must be elements of e4m3, i8, e2m1, e2m3 or e3m2");
  scheme = schemes::kNone;
  scheme.dtype = DType::kE4M3;
  expect_refused(scheme, "elements are e4m3 without scales");
  scheme = schemes::kFp8Block;
  scheme.group = static_cast<ScaleGroup>(9);
  expect_refused(scheme, "unknown scale group");
}

TEST(SchemeTest, AnyBlockServesF32Scales) {
  for (QuantScheme scheme : {schemes::kFp8Block, schemes::kFp8BlockDeepEp, schemes::kInt8Block}) {
    scheme.block = 48;
    EXPECT_NO_THROW(check_scheme("test", scheme));
  }
  QuantScheme scheme = schemes::kFp8Block;
  scheme.scale_format = ScaleFormat::kF32PowerOfTwo;
  scheme.block = 64;
  EXPECT_NO_THROW(check_scheme("test", scheme));
}

TEST(SchemeTest, RefusesSizesThatDoNotFit) {
  const auto expect = [](const std::string& phrase, auto call) {
    test::expect_invalid(phrase, call);
  };
  expect("hidden is -1", [] { (void)num_scales(schemes::kFp8Block, -1); });
  expect("hidden is 33, must be an even number", [] { (void)num_scales(schemes::kMxfp4, 33); });
  expect("hidden is 7, must be an even number", [] { (void)row_bytes(schemes::kNvfp4, 7); });
  expect("overflows", [] { (void)row_bytes(schemes::kFp8Block, kMax); });
  QuantScheme single = schemes::kFp8Block;
  single.block = 1;
  expect("overflows", [&] { (void)scale_row_bytes(single, kMax); });
}

}  // namespace
}  // namespace switchyard
