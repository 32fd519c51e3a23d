// SPDX-License-Identifier: Apache-2.0
//
// quant.h: activation formats (element type and grouping of scales), quantization and
// dequantization.
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
#include "switchyard/stream.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// Which elements share a scale.
enum class ScaleGroup : std::uint8_t {
  kNone,    ///< not quantized, no scale
  kTensor,  ///< one scale for the whole tensor
  kToken,   ///< one scale per row
  kBlock,   ///< one scale per `block` consecutive elements of a row; the last may be partial
};

/// How a scale follows from the largest magnitude of the elements that share it, and how an element
/// is encoded. The originals differ in last bits, so each rule has its own name; docs/schemes.md
/// has the formulas.
enum class ScaleRule : std::uint8_t {
  kDivide,    ///< vLLM: in general scale = max(amax, 1e-10) / largest, element = x / scale
  kMultiply,  ///< DeepEP's fp8 blocks: amax is at least 1e-4; element = x * (448 / amax)
  kMx,        ///< OCP MX: a power of two derived from amax, which has no lower bound
  kTwoLevel,  ///< nvfp4: one e4m3 scale per block, relative to one f32 scale for the tensor
};

/// How one scale is stored.
enum class ScaleFormat : std::uint8_t {
  kF32,
  kF32PowerOfTwo,  ///< f32 rounded up to a power of two (UE8M0 kept as float)
  kE8M0Packed,     ///< biased exponent bytes, four per int32: group 4p + j is byte j of word p
  kE8M0,           ///< one biased exponent byte
  kE4M3,           ///< one e4m3 byte, never negative
};

/// How the scales of many rows are arranged in memory. In a batch [L, C, H] each expert's scales
/// are arranged on their own, one expert after another.
enum class ScaleLayout : std::uint8_t {
  kRowMajor,            ///< [N, S], strides (S, 1)
  kColumnMajor,         ///< [N, S], strides (1, N)
  kColumnMajorAligned,  ///< [N, S], strides (1, up(N, 4)): columns are 16-byte aligned, for TMA
  kSwizzled,  ///< one-byte scales in tiles of 128 rows x 4 scales: [up(N, 128) / 128, cdiv(S, 4),
              ///< 32, 4, 4], padding 0; the block-scale layout of tensor cores
};

/// A quantization scheme: a plain value, compared with ==.
struct QuantScheme {
  DType dtype = DType::kBF16;                    ///< of the elements
  ScaleGroup group = ScaleGroup::kNone;          ///< which elements share a scale
  std::int32_t block = 0;                        ///< elements that share a scale; for kBlock only
  ScaleRule rule = ScaleRule::kDivide;           ///< how a scale follows from them
  ScaleFormat scale_format = ScaleFormat::kF32;  ///< how it is stored

  /// True when rows have scales, or are simulated.
  bool is_quantized() const { return group != ScaleGroup::kNone; }
  /// Elements are rounded to what the format can hold but keep the dtype of the input, without
  /// scales: mxfp6, which has no storage format (as in vLLM and Quark).
  bool is_simulated() const { return dtype == DType::kE2M3 || dtype == DType::kE3M2; }
  /// True when the caller must give the f32 scale of the tensor: nvfp4.
  bool needs_tensor_scale() const { return rule == ScaleRule::kTwoLevel; }
  friend bool operator==(const QuantScheme&, const QuantScheme&) = default;
};

namespace schemes {
/// @{ The schemes with a name; docs/schemes.md says what each is.
inline constexpr QuantScheme kNone{};
inline constexpr QuantScheme kFp8Block{DType::kE4M3, ScaleGroup::kBlock, 128};
inline constexpr QuantScheme kFp8BlockDeepEp{DType::kE4M3, ScaleGroup::kBlock, 128,
                                             ScaleRule::kMultiply};
inline constexpr QuantScheme kFp8Ue8m0{DType::kE4M3, ScaleGroup::kBlock, 128, ScaleRule::kDivide,
                                       ScaleFormat::kE8M0Packed};
inline constexpr QuantScheme kFp8Ue8m0DeepEp{DType::kE4M3, ScaleGroup::kBlock, 128,
                                             ScaleRule::kMultiply, ScaleFormat::kE8M0Packed};
inline constexpr QuantScheme kFp8Token{DType::kE4M3, ScaleGroup::kToken};
inline constexpr QuantScheme kFp8Tensor{DType::kE4M3, ScaleGroup::kTensor};
inline constexpr QuantScheme kInt8Token{DType::kI8, ScaleGroup::kToken};
inline constexpr QuantScheme kInt8Tensor{DType::kI8, ScaleGroup::kTensor};
inline constexpr QuantScheme kInt8Block{DType::kI8, ScaleGroup::kBlock, 128};
inline constexpr QuantScheme kNvfp4{DType::kE2M1, ScaleGroup::kBlock, 16, ScaleRule::kTwoLevel,
                                    ScaleFormat::kE4M3};
inline constexpr QuantScheme kMxfp4{DType::kE2M1, ScaleGroup::kBlock, 32, ScaleRule::kMx,
                                    ScaleFormat::kE8M0};
inline constexpr QuantScheme kMxfp6E3M2{DType::kE3M2, ScaleGroup::kBlock, 32, ScaleRule::kMx,
                                        ScaleFormat::kE8M0};
inline constexpr QuantScheme kMxfp6E2M3{DType::kE2M3, ScaleGroup::kBlock, 32, ScaleRule::kMx,
                                        ScaleFormat::kE8M0};
inline constexpr QuantScheme kMxfp8{DType::kE4M3, ScaleGroup::kBlock, 32, ScaleRule::kMx,
                                    ScaleFormat::kE8M0};
/// @}
}  // namespace schemes

/// The schemes of docs/schemes.md, such as "fp8_block"; empty when unknown.
SWITCHYARD_API std::optional<QuantScheme> scheme_from_name(std::string_view name);

/// Inverse of scheme_from_name; a scheme without a name is described in words.
SWITCHYARD_API std::string name_of(const QuantScheme& scheme);

/// S: scales per row of `hidden` elements (words, for kE8M0Packed); 0 when not quantized or
/// simulated.
SWITCHYARD_API std::int64_t num_scales(const QuantScheme& scheme, std::int64_t hidden);

/// Dtype of a stored scale: f32, i32 for packed words, e8m0 or e4m3.
SWITCHYARD_API DType scale_dtype(const QuantScheme& scheme);

/// Dtype of stored elements: the scheme's, or `input` when it is simulated.
SWITCHYARD_API DType stored_dtype(const QuantScheme& scheme, DType input = DType::kBF16);

/// Quantizes rows, on either device, with the same bits.
///
///   x             [T, H]  bf16, f16 or f32; rows contiguous; H is even for e2m1
///   q             [T, H]  stored_dtype(scheme, x.dtype()), contiguous; written. e2m1: H / 2 bytes
///                         per row, the first element of each byte in its low nibble
///   scales        [T, S]  scale_dtype(scheme), any strides, so the caller chooses column-major or
///                         TMA-aligned layouts; f32 [1] for kTensor; written. Ignored by schemes
///                         that have no scales or are simulated
///   static_scale  f32, replaces the scale computed from the data: [1] for kTensor, [T, 1] for
///                 fp8_token; absent: dynamic. Required for nvfp4, [1] and positive: the global
///                 scale, by convention 448 * 6 / largest magnitude of the tensor
///   scale_ub      upper bound on the largest magnitude of a row, above 0; for dynamic fp8_token
///
/// NaN never changes a scale; docs/schemes.md says what a NaN element becomes in each scheme.
/// On a GPU values are not checked: a global scale that is not positive gives meaningless codes. A
/// dynamic per-tensor scale is computed in `scales` itself there, which nothing else may access
/// until the call has run.
///
/// Errors: kInvalidArgument (scheme, shape, dtype, scale, device); nothing is written then. On a
/// GPU also kNotAvailable (no CUDA module, no GPU), kSystem.
///
/// Mirrors vLLM's ops.scaled_fp8_quant, scaled_int8_quant, scaled_fp4_quant and
/// per_token_group_quant_fp8.
SWITCHYARD_API void quantize(const TensorView& x, const QuantScheme& scheme, const TensorView& q,
                             const TensorView& scales, Stream stream = Stream::host(),
                             const TensorView& static_scale = {},
                             std::optional<float> scale_ub = {});

/// The inverse: y = element * scale in f32, rounded once to the dtype of `y` (bf16, f16 or f32).
/// For nvfp4 the scale is the block's scale times the IEEE reciprocal of tensor_scale.
///
/// q and y are [N, H] with scales as quantize writes them, or a batch [L, C, H], contiguous, all of
/// whose rows are taken, valid or not.
///
///   scales        of a batch: [L, C, S] in any layout of scale_layout.h, tiles included; one scale
///                 per tensor: [L, 1, 1], or [1] for all
///   tensor_scale  f32 [1], of a batch also [L]: the scale that nvfp4 was quantized with; ignored
///                 by other schemes
///
/// Errors: those of quantize.
SWITCHYARD_API void dequantize(const TensorView& q, const TensorView& scales,
                               const QuantScheme& scheme, const TensorView& y,
                               Stream stream = Stream::host(), const TensorView& tensor_scale = {});

}  // namespace switchyard
