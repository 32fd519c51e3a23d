// SPDX-License-Identifier: Apache-2.0
//
// quant.h: activation formats: which element type, how scales are grouped, and the two directions.
//
// Letters used for shapes in this header:
//   T  rows (tokens)     H  elements per row (hidden)     S  scales per row
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "switchyard/dtype.h"
#include "switchyard/export.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// Which elements share a scale.
enum class ScaleGroup : std::uint8_t {
  kNone,    ///< not quantized, no scale
  kTensor,  ///< one scale for the whole tensor
  kToken,   ///< one scale a row
  kBlock,   ///< one scale for each `block` consecutive elements of a row; the last may be partial
};

/// How a dynamic block scale comes from the largest magnitude. The two never give the same bits for
/// every input, so they are two names (semantics: vLLM's per_token_group_quant_fp8; DeepEP's cast
/// inside low-latency dispatch).
enum class Fp8Rule : std::uint8_t {
  kDivide,    ///< scale = max(amax, 1e-10) / 448, element = x / scale  (vLLM)
  kMultiply,  ///< amax floor 1e-4; element = x * (448 / amax), scale = amax * (1 / 448)  (DeepEP)
};

/// How scales are stored.
enum class ScaleFormat : std::uint8_t {
  kF32,
  kF32PowerOfTwo,  ///< f32 whose value is a power of two, rounded up (UE8M0 kept as float)
  kE8M0Packed,     ///< biased exponent bytes, four to an int32, group 4p + j in byte j of word p
};

/// A quantization scheme. A plain value; compare with ==.
struct QuantScheme {
  DType dtype = DType::kBF16;
  ScaleGroup group = ScaleGroup::kNone;
  std::int32_t block = 0;  ///< elements that share a scale; for kBlock only
  Fp8Rule rule = Fp8Rule::kDivide;
  ScaleFormat scale_format = ScaleFormat::kF32;

  bool is_quantized() const { return group != ScaleGroup::kNone; }
  friend bool operator==(const QuantScheme&, const QuantScheme&) = default;
};

namespace schemes {
inline constexpr QuantScheme kNone{};
inline constexpr QuantScheme kFp8Block{DType::kE4M3, ScaleGroup::kBlock, 128};
inline constexpr QuantScheme kFp8BlockDeepEp{DType::kE4M3, ScaleGroup::kBlock, 128,
                                             Fp8Rule::kMultiply};
inline constexpr QuantScheme kFp8Token{DType::kE4M3, ScaleGroup::kToken};
inline constexpr QuantScheme kFp8Tensor{DType::kE4M3, ScaleGroup::kTensor};
}  // namespace schemes

/// "none", "fp8_block", "fp8_block_deepep", "fp8_token", "fp8_tensor"; nothing when unknown.
SWITCHYARD_API std::optional<QuantScheme> scheme_from_name(std::string_view name);

/// Inverse of scheme_from_name; a scheme without a name of its own is described in words.
SWITCHYARD_API std::string name_of(const QuantScheme& scheme);

/// S: scales that one row of `hidden` elements has (words, for kE8M0Packed); 0 when not quantized.
SWITCHYARD_API std::int64_t num_scales(const QuantScheme& scheme, std::int64_t hidden);

/// Quantizes rows.
///
///   x       [T, H]  bf16, f16 or f32; rows contiguous
///   q       [T, H]  scheme.dtype, contiguous; written
///   scales  [T, S]  f32 (i32 for kE8M0Packed), any strides, so that column-major and TMA-aligned
///                   layouts are a choice of the caller; [1] for kTensor; written
///   static_scale    [1] f32 for kTensor: used instead of the largest magnitude; absent: dynamic
///
/// NaN never changes a scale; as an element it becomes what semantics of the scheme's original do.
/// Errors: kInvalidArgument (shape, dtype); nothing was written then.
SWITCHYARD_API void quantize(const TensorView& x, const QuantScheme& scheme, const TensorView& q,
                             const TensorView& scales, const TensorView& static_scale = {});

/// The inverse map: y = element * scale in f32, rounded once to the dtype of `y` (bf16, f16 or
/// f32).
SWITCHYARD_API void dequantize(const TensorView& q, const TensorView& scales,
                               const QuantScheme& scheme, const TensorView& y);

}  // namespace switchyard
