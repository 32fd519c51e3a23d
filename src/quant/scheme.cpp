// SPDX-License-Identifier: Apache-2.0
//
// scheme.cpp: the table of all valid schemes. A new format needs a row here and one in
// kNamedSchemes, an element in codec.h, a rule in scale_rules.h and a vectorized version behind
// rows.h.

#include "quant/scheme.h"

#include <algorithm>
#include <array>

#include "core/bytes.h"
#include "core/fail.h"

namespace switchyard {
namespace {

// Every valid combination; block 0 stands for any size.
constexpr std::array<QuantScheme, 16> kMeanings{
    {{DType::kE4M3, ScaleGroup::kTensor},
     {DType::kE4M3, ScaleGroup::kToken},
     {DType::kE4M3, ScaleGroup::kBlock},
     {DType::kE4M3, ScaleGroup::kBlock, 0, ScaleRule::kMultiply},
     {DType::kE4M3, ScaleGroup::kBlock, 0, ScaleRule::kDivide, ScaleFormat::kF32PowerOfTwo},
     {DType::kE4M3, ScaleGroup::kBlock, 0, ScaleRule::kMultiply, ScaleFormat::kF32PowerOfTwo},
     schemes::kFp8Ue8m0,
     schemes::kFp8Ue8m0DeepEp,
     schemes::kMxfp8,
     {DType::kI8, ScaleGroup::kTensor},
     {DType::kI8, ScaleGroup::kToken},
     {DType::kI8, ScaleGroup::kBlock},
     schemes::kNvfp4,
     schemes::kMxfp4,
     schemes::kMxfp6E3M2,
     schemes::kMxfp6E2M3}};

std::string describe_group(const QuantScheme& scheme) {
  switch (scheme.group) {
    case ScaleGroup::kNone: return "no scales";
    case ScaleGroup::kTensor: return "one scale per tensor";
    case ScaleGroup::kToken: return "one scale per token";
    case ScaleGroup::kBlock: return fmt::format("one scale per block of {}", scheme.block);
  }
  return "unknown scale group";
}

const char* describe_rule(ScaleRule rule) {
  switch (rule) {
    case ScaleRule::kDivide: return "divide rule";
    case ScaleRule::kMultiply: return "multiply rule";
    case ScaleRule::kMx: return "mx rule";
    case ScaleRule::kTwoLevel: return "two-level rule";
  }
  return "unknown rule";
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

std::string describe(const QuantScheme& scheme) {
  return fmt::format("{}, {}, {}, {}", name_of(scheme.dtype), describe_group(scheme),
                     describe_rule(scheme.rule), describe_format(scheme.scale_format));
}

bool is_alike(const QuantScheme& a, const QuantScheme& b) {
  return a.dtype == b.dtype && a.group == b.group && a.rule == b.rule &&
         a.scale_format == b.scale_format;
}

[[noreturn]] void refuse(const char* function, const QuantScheme& scheme) {
  std::string choices;
  for (const QuantScheme& known : kMeanings) {
    if (known.dtype == scheme.dtype) choices += (choices.empty() ? "" : "; or ") + describe(known);
  }
  fail(Errc::kInvalidArgument, "{}: scheme is {}, must be {}", function, describe(scheme),
       choices.empty() ? "elements of e4m3, i8, e2m1, e2m3 or e3m2" : choices);
}

}  // namespace

std::vector<QuantScheme> named_schemes() {
  std::vector<QuantScheme> schemes;
  for (const NamedScheme& named : kNamedSchemes) schemes.push_back(named.scheme);
  return schemes;
}

std::vector<std::string_view> scheme_names(bool (*includes)(const QuantScheme&)) {
  std::vector<std::string_view> names;
  for (const NamedScheme& named : kNamedSchemes) {
    if (includes == nullptr || includes(named.scheme)) names.emplace_back(named.name);
  }
  return names;
}

std::optional<DType> wide_dtype_from_name(std::string_view name) {
  const std::optional<DType> dtype = dtype_from_name(name);
  return dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32 ? dtype
                                                                               : std::nullopt;
}

bool has_row_scales(const QuantScheme& scheme) {
  return scheme.is_quantized() && !scheme.is_simulated() && scheme.group != ScaleGroup::kTensor;
}

bool is_returnable(const QuantScheme& scheme) {
  return scheme.group != ScaleGroup::kTensor && !scheme.needs_tensor_scale() &&
         !scheme.is_simulated();
}

std::vector<ScaleLayout> layouts_of(const QuantScheme& scheme) {
  if (!has_row_scales(scheme)) return {ScaleLayout::kRowMajor};
  std::vector<ScaleLayout> layouts{ScaleLayout::kRowMajor, ScaleLayout::kColumnMajor,
                                   ScaleLayout::kColumnMajorAligned};
  if (bits_of(scale_dtype(scheme)) == 8) layouts.push_back(ScaleLayout::kSwizzled);
  return layouts;
}

void check_scheme(const char* function, const QuantScheme& scheme) {
  if (scheme.group == ScaleGroup::kNone) {
    const bool is_plain =
        scheme.dtype == DType::kBF16 || scheme.dtype == DType::kF16 || scheme.dtype == DType::kF32;
    require(is_plain, Errc::kInvalidArgument,
            "{}: elements are {} without scales, must be bf16, f16 or f32", function,
            name_of(scheme.dtype));
    return;
  }
  const auto known = std::find_if(kMeanings.begin(), kMeanings.end(),
                                  [&](const QuantScheme& each) { return is_alike(each, scheme); });
  if (known == kMeanings.end()) refuse(function, scheme);
  if (scheme.group != ScaleGroup::kBlock) return;
  require(scheme.block > 0, Errc::kInvalidArgument, "{}: block is {}, must be at least 1 element",
          function, scheme.block);
  require(known->block == 0 || known->block == scheme.block, Errc::kInvalidArgument,
          "{}: block is {} for {} with {}, must be {}", function, scheme.block,
          name_of(scheme.dtype), describe_format(scheme.scale_format), known->block);
}

void check_hidden(const char* function, const QuantScheme& scheme, std::int64_t hidden) {
  require(hidden >= 0, Errc::kInvalidArgument, "{}: hidden is {}, must be at least 0", function,
          hidden);
  require(scheme.dtype != DType::kE2M1 || hidden % 2 == 0, Errc::kInvalidArgument,
          "{}: hidden is {}, must be an even number for e2m1, which shares bytes", function,
          hidden);
}

std::optional<QuantScheme> scheme_from_name(std::string_view name) {
  for (const NamedScheme& known : kNamedSchemes) {
    if (name == known.name) return known.scheme;
  }
  return std::nullopt;
}

std::string name_of(const QuantScheme& scheme) {
  for (const NamedScheme& known : kNamedSchemes) {
    if (scheme == known.scheme) return known.name;
  }
  if (!scheme.is_quantized()) return fmt::format("{}, not quantized", name_of(scheme.dtype));
  return describe(scheme);
}

std::int64_t num_scales(const QuantScheme& scheme, std::int64_t hidden) {
  check_scheme("num_scales", scheme);
  check_hidden("num_scales", scheme, hidden);
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
  check_hidden("row_bytes", scheme, hidden);
  const std::int64_t bits = checked_mul<std::int64_t>(hidden, bits_of(stored_dtype(scheme, input)));
  return static_cast<std::size_t>(cdiv<std::int64_t>(bits, 8));
}

std::size_t scale_row_bytes(const QuantScheme& scheme, std::int64_t hidden) {
  const std::int64_t bytes = bits_of(scale_dtype(scheme)) / 8;
  return static_cast<std::size_t>(checked_mul(num_scales(scheme, hidden), bytes));
}

}  // namespace switchyard
