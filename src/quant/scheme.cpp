// SPDX-License-Identifier: Apache-2.0
//
// scheme.cpp: the table of named schemes. A new format is one row here, its scalar definition in
// scalar.h and its wide version behind rows.h.

#include "quant/scheme.h"

#include <algorithm>
#include <array>

#include "core/bytes.h"
#include "core/fail.h"

namespace switchyard {
namespace {

struct NamedScheme {
  const char* name;
  QuantScheme scheme;
};

constexpr std::array<NamedScheme, 15> kSchemes{{{"none", schemes::kNone},
                                                {"fp8_block", schemes::kFp8Block},
                                                {"fp8_block_deepep", schemes::kFp8BlockDeepEp},
                                                {"fp8_ue8m0", schemes::kFp8Ue8m0},
                                                {"fp8_ue8m0_deepep", schemes::kFp8Ue8m0DeepEp},
                                                {"fp8_token", schemes::kFp8Token},
                                                {"fp8_tensor", schemes::kFp8Tensor},
                                                {"int8_token", schemes::kInt8Token},
                                                {"int8_tensor", schemes::kInt8Tensor},
                                                {"int8_block", schemes::kInt8Block},
                                                {"nvfp4", schemes::kNvfp4},
                                                {"mxfp4", schemes::kMxfp4},
                                                {"mxfp6_e3m2", schemes::kMxfp6E3M2},
                                                {"mxfp6_e2m3", schemes::kMxfp6E2M3},
                                                {"mxfp8", schemes::kMxfp8}}};

constexpr std::array<DType, 1> kQuantizedDTypes{DType::kE4M3};
constexpr std::array<DType, 3> kPlainDTypes{DType::kBF16, DType::kF16, DType::kF32};

template <std::size_t kCount>
bool contains(const std::array<DType, kCount>& choices, DType dtype) {
  return std::find(choices.begin(), choices.end(), dtype) != choices.end();
}

std::string describe_group(const QuantScheme& scheme) {
  switch (scheme.group) {
    case ScaleGroup::kNone: return "no scales";
    case ScaleGroup::kTensor: return "one scale a tensor";
    case ScaleGroup::kToken: return "one scale a token";
    case ScaleGroup::kBlock: return fmt::format("one scale a block of {}", scheme.block);
  }
  return "unknown scale group";
}

const char* describe_format(ScaleFormat format) {
  switch (format) {
    case ScaleFormat::kF32: return "f32 scales";
    case ScaleFormat::kF32PowerOfTwo: return "f32 power-of-two scales";
    case ScaleFormat::kE8M0Packed: return "packed e8m0 scales";
    case ScaleFormat::kE8M0: return "e8m0 scales";
    case ScaleFormat::kE4M3: return "e4m3 scales";
  }
  return "unknown scales";
}

void check_block_scheme(const char* function, const QuantScheme& scheme) {
  require(scheme.block > 0, Errc::kInvalidArgument, "{}: block is {}, want at least 1 element",
          function, scheme.block);
  require(scheme.rule == ScaleRule::kDivide || scheme.rule == ScaleRule::kMultiply,
          Errc::kInvalidArgument, "{}: rule is {}, want kDivide or kMultiply", function,
          static_cast<int>(scheme.rule));
  require(scheme.scale_format <= ScaleFormat::kE8M0Packed, Errc::kInvalidArgument,
          "{}: scale format is {}, want from 0 to 2", function,
          static_cast<int>(scheme.scale_format));
  require(scheme.scale_format == ScaleFormat::kF32 || scheme.block == 128, Errc::kInvalidArgument,
          "{}: {} with block {}, want block 128", function, describe_format(scheme.scale_format),
          scheme.block);
}

}  // namespace

void check_scheme(const char* function, const QuantScheme& scheme) {
  require(scheme.group <= ScaleGroup::kBlock, Errc::kInvalidArgument,
          "{}: scale group is {}, want from 0 to 3", function, static_cast<int>(scheme.group));
  if (scheme.group == ScaleGroup::kNone) {
    require(contains(kPlainDTypes, scheme.dtype), Errc::kInvalidArgument,
            "{}: elements are {} without scales, want bf16, f16 or f32", function,
            name_of(scheme.dtype));
    return;
  }
  require(contains(kQuantizedDTypes, scheme.dtype), Errc::kInvalidArgument,
          "{}: elements are {}, want e4m3; other formats have no quantizer yet", function,
          name_of(scheme.dtype));
  if (scheme.group == ScaleGroup::kBlock) {
    check_block_scheme(function, scheme);
    return;
  }
  require(scheme.rule == ScaleRule::kDivide && scheme.scale_format == ScaleFormat::kF32,
          Errc::kInvalidArgument, "{}: {} has rule {} and {}, want rule kDivide and f32 scales",
          function, describe_group(scheme),
          scheme.rule == ScaleRule::kDivide ? "kDivide" : "kMultiply",
          describe_format(scheme.scale_format));
}

std::optional<QuantScheme> scheme_from_name(std::string_view name) {
  for (const NamedScheme& known : kSchemes) {
    if (name == known.name) return known.scheme;
  }
  return std::nullopt;
}

std::string name_of(const QuantScheme& scheme) {
  for (const NamedScheme& known : kSchemes) {
    if (scheme == known.scheme) return known.name;
  }
  if (!scheme.is_quantized()) return fmt::format("{}, not quantized", name_of(scheme.dtype));
  const char* rule = scheme.rule == ScaleRule::kDivide ? "divide rule" : "multiply rule";
  return fmt::format("{}, {}, {}, {}", name_of(scheme.dtype), describe_group(scheme), rule,
                     describe_format(scheme.scale_format));
}

std::int64_t num_scales(const QuantScheme& scheme, std::int64_t hidden) {
  check_scheme("num_scales", scheme);
  require(hidden >= 0, Errc::kInvalidArgument, "num_scales: hidden is {}, want at least 0", hidden);
  if (!scheme.is_quantized() || scheme.is_simulated()) return 0;
  if (scheme.group != ScaleGroup::kBlock) return 1;
  const std::int64_t blocks = hidden / scheme.block + (hidden % scheme.block != 0 ? 1 : 0);
  return scheme.scale_format == ScaleFormat::kE8M0Packed ? cdiv(blocks, std::int64_t{4}) : blocks;
}

DType scale_dtype(const QuantScheme& scheme) {
  switch (scheme.scale_format) {
    case ScaleFormat::kE8M0Packed: return DType::kI32;
    case ScaleFormat::kE8M0: return DType::kE8M0;
    case ScaleFormat::kE4M3: return DType::kE4M3;
    case ScaleFormat::kF32:
    case ScaleFormat::kF32PowerOfTwo: break;
  }
  return DType::kF32;
}

DType stored_dtype(const QuantScheme& scheme, DType input) {
  return scheme.is_simulated() ? input : scheme.dtype;
}

std::size_t row_bytes(const QuantScheme& scheme, std::int64_t hidden, DType input) {
  const std::int64_t bits = checked_mul<std::int64_t>(hidden, bits_of(stored_dtype(scheme, input)));
  return static_cast<std::size_t>(cdiv<std::int64_t>(bits, 8));
}

std::size_t scale_row_bytes(const QuantScheme& scheme, std::int64_t hidden) {
  return static_cast<std::size_t>(num_scales(scheme, hidden) * bits_of(scale_dtype(scheme)) / 8);
}

}  // namespace switchyard
