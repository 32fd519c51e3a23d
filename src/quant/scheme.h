// SPDX-License-Identifier: Apache-2.0
//
// scheme.h: the valid schemes, and checks that refuse all others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "switchyard/quant.h"
#include "switchyard/scale_layout.h"

namespace switchyard {

struct NamedScheme {
  const char* name;
  QuantScheme scheme;
};

/// All schemes that have a name.
inline constexpr NamedScheme kNamedSchemes[] = {{"none", schemes::kNone},
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
                                                {"mxfp8", schemes::kMxfp8}};

/// Those schemes; the first is none.
std::vector<QuantScheme> named_schemes();

/// Their names, of those that `includes`.
std::vector<std::string_view> scheme_names(bool (*includes)(const QuantScheme&) = nullptr);

/// bf16, f16 or f32: the dtypes of rows that are not quantized.
std::optional<DType> wide_dtype_from_name(std::string_view name);

/// Whether each row has scales that are stored separately.
bool has_row_scales(const QuantScheme& scheme);

/// Whether combine can return rows in it: each row alone has all that its elements mean.
bool is_returnable(const QuantScheme& scheme);

/// The layouts that a scheme's scales may have, row-major first and swizzled last.
std::vector<ScaleLayout> layouts_of(const QuantScheme& scheme);

/// Refuses a scheme whose fields contradict each other; the message lists its dtype's valid ones.
///
/// Errors: kInvalidArgument; the message starts with `function`.
void check_scheme(const char* function, const QuantScheme& scheme);

/// Refuses a negative `hidden` and, for e2m1, an odd one.
///
/// Errors: kInvalidArgument; the message starts with `function`.
void check_hidden(const char* function, const QuantScheme& scheme, std::int64_t hidden);

/// Bytes of one stored row of elements; `input` is the dtype of simulated elements.
std::size_t row_bytes(const QuantScheme& scheme, std::int64_t hidden, DType input = DType::kBF16);

/// Bytes of the scales of one row; for kTensor, of the one scale.
std::size_t scale_row_bytes(const QuantScheme& scheme, std::int64_t hidden);

}  // namespace switchyard
