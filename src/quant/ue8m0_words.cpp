// SPDX-License-Identifier: Apache-2.0
//
// ue8m0_words.cpp: packs power-of-two scales as exponent bytes, four per word, and unpacks them.

#include <cstring>

#include "switchyard/scale_layout.h"

#include "core/bytes.h"
#include "core/fail.h"
#include "core/require_device.h"
#include "quant/e8m0.h"
#include "quant/scale_plane.h"

namespace switchyard {
namespace {

constexpr std::int64_t kBytesOfWord = 4;

struct Shape {
  std::int64_t num_planes;
  std::int64_t num_rows;
  std::int64_t num_scales;
};

// Checks that both sides are rows of the same shape, apart from the packing.
Shape check_sides(const char* function, const TensorView& scales, const TensorView& words) {
  check_scale_view(function, "scales", scales);
  require(!is_swizzled(scales) && (scales.dtype() == DType::kF32 || bits_of(scales.dtype()) == 8),
          Errc::kInvalidArgument, "{}: scales is {}, must be rows of f32 or of e8m0 bytes",
          function, scales.describe());
  const ScalePlane plane = plane_of(scales);
  const std::int64_t num_experts = is_batched(scales) ? scales.shape(0) : kNoExperts;
  check_scales_for(function, words, DType::kI32, num_experts, plane.num_rows,
                   cdiv(plane.num_scales, kBytesOfWord));
  const bool is_empty = plane.num_scales == 0;
  return {num_experts == kNoExperts ? 1 : num_experts, is_empty ? 0 : plane.num_rows,
          plane.num_scales};
}

// The exponent byte, or -1 for an f32 that is not a power of two, 0, Inf or NaN.
int exponent_byte(const ScalePlane& scales, std::int64_t n, std::int64_t s) {
  const std::byte* element = scales.data + scales.element_bytes * (scales.row(n) + s * scales.step);
  if (scales.element_bytes == 1) return static_cast<int>(*element);
  float value = 0.0f;
  std::memcpy(&value, element, sizeof value);
  if (value != value) return 255;
  const std::uint32_t bits = bits_from_f32(value);
  if (bits == 0) return 0;
  const int byte = static_cast<int>(bits >> 23);
  const bool is_exact = byte == 255 || f32_from_e8m0(static_cast<std::uint8_t>(byte)) == value;
  return byte <= 255 && is_exact ? byte : -1;
}

void check_powers_of_two(const TensorView& scales, const Shape& shape) {
  if (scales.dtype() != DType::kF32) return;
  for (std::int64_t e = 0; e < shape.num_planes; ++e) {
    const ScalePlane plane = plane_of(scales, e);
    for (std::int64_t n = 0; n < shape.num_rows; ++n) {
      for (std::int64_t s = 0; s < shape.num_scales; ++s) {
        require(exponent_byte(plane, n, s) >= 0, Errc::kInvalidArgument,
                "pack_ue8m0: scale {} of row {} of plane {} is not a power of two; quantize with "
                "kF32PowerOfTwo or kE8M0Packed",
                s, n, e);
      }
    }
  }
}

std::byte* word_of(const ScalePlane& words, std::int64_t n, std::int64_t p) {
  return words.data + kBytesOfWord * (words.row(n) + p * words.step);
}

}  // namespace

void pack_ue8m0(const TensorView& scales, const TensorView& words) {
  require_host("pack_ue8m0", {{"scales", scales}, {"words", words}});
  const Shape shape = check_sides("pack_ue8m0", scales, words);
  check_powers_of_two(scales, shape);
  for (std::int64_t e = 0; e < shape.num_planes; ++e) {
    const ScalePlane from = plane_of(scales, e);
    const ScalePlane to = plane_of(words, e);
    for (std::int64_t n = 0; n < shape.num_rows; ++n) {
      std::uint32_t word = 0;
      for (std::int64_t s = 0; s < shape.num_scales; ++s) {
        const std::int64_t j = s % kBytesOfWord;
        word |= static_cast<std::uint32_t>(exponent_byte(from, n, s)) << (8 * j);
        if (j + 1 < kBytesOfWord && s + 1 < shape.num_scales) continue;
        std::memcpy(word_of(to, n, s / kBytesOfWord), &word, sizeof word);
        word = 0;
      }
    }
  }
}

void unpack_ue8m0(const TensorView& words, const TensorView& scales) {
  require_host("unpack_ue8m0", {{"words", words}, {"scales", scales}});
  const Shape shape = check_sides("unpack_ue8m0", scales, words);
  for (std::int64_t e = 0; e < shape.num_planes; ++e) {
    const ScalePlane from = plane_of(words, e);
    const ScalePlane to = plane_of(scales, e);
    for (std::int64_t n = 0; n < shape.num_rows; ++n) {
      for (std::int64_t s = 0; s < shape.num_scales; ++s) {
        std::uint32_t word = 0;
        std::memcpy(&word, word_of(from, n, s / kBytesOfWord), sizeof word);
        const auto byte = static_cast<std::uint8_t>(word >> (8 * (s % kBytesOfWord)));
        std::byte* element = to.data + to.element_bytes * (to.row(n) + s * to.step);
        const float value = f32_from_e8m0(byte);
        std::memcpy(element, to.element_bytes == 1 ? static_cast<const void*>(&byte) : &value,
                    static_cast<std::size_t>(to.element_bytes));
      }
    }
  }
}

}  // namespace switchyard
