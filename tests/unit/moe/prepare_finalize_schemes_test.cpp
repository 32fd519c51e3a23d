// SPDX-License-Identifier: Apache-2.0
//
// Every class with every scheme, on the wire and for the experts: what experts get and what returns
// equal the oracle, and classes that quantize and weight at the same points agree in every bit.

#include <gtest/gtest.h>

#include "prepare_finalize_case.h"

namespace switchyard {
namespace {

using test::Bits;
using test::check_class;
using test::ClassCase;
using test::kAllClasses;

constexpr float kNvfp4Scale = 448.0f * 6.0f / 4.0f;

struct SchemeCase {
  QuantScheme scheme;
  std::optional<float> static_scale{};
  ScaleLayout scale_layout = ScaleLayout::kRowMajor;
};

// Schemes that senders can apply.
std::vector<SchemeCase> sender_schemes() {
  return {{schemes::kNone},
          {schemes::kFp8Block},
          {schemes::kFp8BlockDeepEp, {}, ScaleLayout::kColumnMajor},
          {schemes::kFp8Ue8m0, {}, ScaleLayout::kColumnMajorAligned},
          {schemes::kFp8Ue8m0DeepEp},
          {schemes::kFp8Token},
          {schemes::kFp8Tensor, 0.02f},
          {schemes::kInt8Token},
          {schemes::kInt8Tensor, 0.03f},
          {schemes::kInt8Block},
          {schemes::kNvfp4, kNvfp4Scale, ScaleLayout::kSwizzled},
          {schemes::kMxfp4},
          {schemes::kMxfp6E3M2},
          {schemes::kMxfp6E2M3},
          {schemes::kMxfp8, {}, ScaleLayout::kSwizzled}};
}

ClassCase case_of(PrepareKind kind, const SchemeCase& scheme) {
  ClassCase test;
  test.kind = kind;
  test.scheme = scheme.scheme;
  test.static_scale = scheme.static_scale;
  test.scale_layout = scheme.scale_layout;
  return test;
}

TEST(PrepareFinalizeSchemesTest, EveryClassEqualsTheOracleAndItsKin) {
  for (const SchemeCase& scheme : sender_schemes()) {
    const auto run = [&](PrepareKind kind) { return check_class(case_of(kind, scheme)); };
    const std::vector<Bits> decode = run(PrepareKind::kElasticDecode);
    EXPECT_EQ(run(PrepareKind::kElasticPrefill), decode) << name_of(scheme.scheme);
    EXPECT_EQ(run(PrepareKind::kAllToAll), decode) << name_of(scheme.scheme);
    EXPECT_EQ(run(PrepareKind::kAllToAllOneSided), decode) << name_of(scheme.scheme);
    EXPECT_EQ(run(PrepareKind::kLocal), run(PrepareKind::kLowLatency)) << name_of(scheme.scheme);
    run(PrepareKind::kAllGather);
  }
}

// No rank can know a scale for all rows, so it is computed where they arrive, from valid rows only.
TEST(PrepareFinalizeSchemesTest, DynamicTensorScalesAreThoseOfTheArrivedRows) {
  for (const PrepareKind kind : kAllClasses) {
    check_class(case_of(kind, {schemes::kFp8Tensor}));
    check_class(case_of(kind, {schemes::kInt8Tensor}));
  }
}

struct WireCase {
  QuantScheme wire;
  SchemeCase experts;
};

TEST(PrepareFinalizeSchemesTest, OtherSchemesOnTheWireAreQuantizedAgain) {
  const QuantScheme f32{DType::kF32};
  const QuantScheme f16{DType::kF16};
  const WireCase cases[] = {
      {schemes::kFp8BlockDeepEp, {schemes::kFp8Token}},
      {schemes::kFp8BlockDeepEp, {schemes::kFp8Tensor}},
      {schemes::kFp8Block, {schemes::kNone}},
      {schemes::kFp8Ue8m0, {schemes::kInt8Block, {}, ScaleLayout::kColumnMajorAligned}},
      {schemes::kNvfp4, {schemes::kFp8Token, kNvfp4Scale}},
      {schemes::kNone, {schemes::kNvfp4, kNvfp4Scale, ScaleLayout::kSwizzled}},
      {schemes::kNone, {schemes::kFp8BlockDeepEp, {}, ScaleLayout::kColumnMajor}},
      {schemes::kNone, {schemes::kFp8Ue8m0, {}, ScaleLayout::kColumnMajorAligned}},
      {schemes::kInt8Token, {schemes::kMxfp6E2M3}},
      {f32, {schemes::kFp8Block}},
      {f32, {schemes::kNone}},
      {f16, {schemes::kMxfp6E3M2}},
      {f16, {schemes::kMxfp8, {}, ScaleLayout::kSwizzled}}};
  for (const PrepareKind kind : kAllClasses) {
    for (const WireCase& wire : cases) {
      ClassCase test = case_of(kind, wire.experts);
      test.wire_scheme = wire.wire;
      if (!wire.wire.is_quantized()) test.input = wire.wire.dtype;
      check_class(test);
    }
  }
}

// Tiles of 128 rows: more rows than one tile, on one rank and on several.
TEST(PrepareFinalizeSchemesTest, SwizzledScalesOfMoreThanOneTile) {
  for (const PrepareKind kind : kAllClasses) {
    for (const bool is_late : {false, true}) {
      ClassCase test = case_of(kind, {schemes::kNvfp4, kNvfp4Scale, ScaleLayout::kSwizzled});
      test.num_tokens = {47};
      if (!is_late) test.num_tokens = {47, 3, 40};
      test.max_tokens_per_rank = 47;
      test.hidden = 80;
      if (is_late) test.wire_scheme = schemes::kNone;
      check_class(test);
    }
  }
}

}  // namespace
}  // namespace switchyard
