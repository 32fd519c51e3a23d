// SPDX-License-Identifier: Apache-2.0
//
// codec.h: a common interface to the element formats: scaled value to code, code to value.
#pragma once

#include "switchyard/quant.h"

#include "quant/fp4.h"
#include "quant/fp6.h"
#include "quant/fp8.h"
#include "quant/int8.h"

namespace switchyard {

enum class Codec : std::uint8_t {
  kE4M3,
  kI8HalfAway,  ///< one scale per token
  kI8HalfEven,  ///< one scale per tensor
  kI8Truncate,  ///< one scale per block
  kE2M1,
  kE2M3,
  kE3M2,
};

/// vLLM's int8 kernels round differently for each scale group.
SWITCHYARD_HOST_DEVICE constexpr Codec codec_of(const QuantScheme& scheme) {
  switch (scheme.dtype) {
    case DType::kE2M1: return Codec::kE2M1;
    case DType::kE2M3: return Codec::kE2M3;
    case DType::kE3M2: return Codec::kE3M2;
    case DType::kI8:
      if (scheme.group == ScaleGroup::kToken) return Codec::kI8HalfAway;
      return scheme.group == ScaleGroup::kTensor ? Codec::kI8HalfEven : Codec::kI8Truncate;
    default: return Codec::kE4M3;
  }
}

/// If the codec is a constant, as in kernels, the switch disappears.
SWITCHYARD_HOST_DEVICE constexpr std::uint8_t encode(Codec codec, float x) {
  switch (codec) {
    case Codec::kI8HalfAway: return i8_half_away(x);
    case Codec::kI8HalfEven: return i8_half_even(x);
    case Codec::kI8Truncate: return i8_truncate(x);
    case Codec::kE2M1: return e2m1_from_f32(x);
    case Codec::kE2M3: return e2m3_from_f32(x);
    case Codec::kE3M2: return e3m2_from_f32(x);
    case Codec::kE4M3: break;
  }
  return e4m3_from_f32(x);
}

SWITCHYARD_HOST_DEVICE constexpr float decode(DType dtype, std::uint8_t code) {
  switch (dtype) {
    case DType::kI8: return f32_from_i8(code);
    case DType::kE2M1: return f32_from_e2m1(code);
    case DType::kE2M3: return f32_from_e2m3(code);
    case DType::kE3M2: return f32_from_e3m2(code);
    default: return f32_from_e4m3(code);
  }
}

}  // namespace switchyard
