// SPDX-License-Identifier: Apache-2.0
//
// golden_quantize.h: the cases of quantize.safetensors, and `quantize` on either device against
// them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "switchyard/quant.h"

#include "support/golden.h"

namespace switchyard::test {

struct GoldenScheme {
  std::string name;
  QuantScheme scheme;
  bool is_static = false;  ///< takes "static/<name>"; its vectors have no scales
  std::optional<float> scale_ub{};
};

inline const std::vector<GoldenScheme>& golden_schemes() {
  constexpr QuantScheme kPower64{DType::kE4M3, ScaleGroup::kBlock, 64, ScaleRule::kDivide,
                                 ScaleFormat::kF32PowerOfTwo};
  constexpr QuantScheme kPowerDeepEp{DType::kE4M3, ScaleGroup::kBlock, 128, ScaleRule::kMultiply,
                                     ScaleFormat::kF32PowerOfTwo};
  static const std::vector<GoldenScheme> all{
      {"fp8_block", schemes::kFp8Block},
      {"fp8_block64_power", kPower64},
      {"fp8_block_deepep", schemes::kFp8BlockDeepEp},
      {"fp8_block_deepep_power", kPowerDeepEp},
      {"fp8_ue8m0", schemes::kFp8Ue8m0},
      {"fp8_ue8m0_deepep", schemes::kFp8Ue8m0DeepEp},
      {"fp8_token", schemes::kFp8Token},
      {"fp8_token_ub", schemes::kFp8Token, false, 0.75f},
      {"fp8_token_static", schemes::kFp8Token, true},
      {"fp8_tensor", schemes::kFp8Tensor},
      {"fp8_tensor_static", schemes::kFp8Tensor, true},
      {"int8_token", schemes::kInt8Token},
      {"int8_tensor", schemes::kInt8Tensor},
      {"int8_tensor_static", schemes::kInt8Tensor, true},
      {"int8_block", schemes::kInt8Block},
      {"int8_block32", {DType::kI8, ScaleGroup::kBlock, 32}},
      {"nvfp4", schemes::kNvfp4, true},
      {"nvfp4_small", schemes::kNvfp4, true},
      {"nvfp4_large", schemes::kNvfp4, true},
      {"mxfp4", schemes::kMxfp4},
      {"mxfp6_e3m2", schemes::kMxfp6E3M2},
      {"mxfp6_e2m3", schemes::kMxfp6E2M3},
      {"mxfp8", schemes::kMxfp8},
  };
  return all;
}

/// Calls body(scheme, path) for each input of each dtype; rows are at path + "x", results of the
/// scheme at path + scheme.name + "/q" and "/scales".
template <typename Body>
void for_each_golden_rows(const Body& body) {
  for (const char* dtype : {"bf16", "f16", "f32"}) {
    for (const char* kind : {"finite", "special", "narrow"}) {
      const std::string path = std::string(dtype) + "/" + kind + "/";
      for (const GoldenScheme& scheme : golden_schemes()) {
        SCOPED_TRACE(path + scheme.name);
        body(scheme, path);
      }
    }
  }
}

/// The given scale of a static case: [1], or the first T of [T, 1].
inline TensorView golden_static_scale(const Golden& golden, const GoldenScheme& test,
                                      std::int64_t num_rows) {
  if (!test.is_static) return {};
  const TensorView scale = golden("static/" + test.name);
  if (test.scheme.group != ScaleGroup::kToken) return scale;
  return {scale.data(), DType::kF32, {num_rows, 1}};
}

/// Quantizes every input by every scheme on the device of `stream`.
inline void expect_golden_quantize(const Golden& golden, Stream stream) {
  const Device device = stream.device();
  for_each_golden_rows([&](const GoldenScheme& test, const std::string& path) {
    const Tensor x = copy_to(golden(path + "x"), device);
    const QuantScheme& scheme = test.scheme;
    const std::int64_t num_rows = x.shape(0);
    const std::int64_t hidden = x.shape(1);
    const Tensor q(stored_dtype(scheme, x.dtype()), {num_rows, hidden}, device);
    const std::int64_t num = num_scales(scheme, hidden);
    const Tensor scales = scheme.group == ScaleGroup::kTensor
                              ? Tensor(DType::kF32, {1}, device)
                              : Tensor(scale_dtype(scheme), {num_rows, num}, device);
    Tensor given;
    const TensorView static_scale = golden_static_scale(golden, test, num_rows);
    if (static_scale.has_value()) given = copy_to(static_scale, device);
    quantize(x, scheme, q, num == 0 && !scheme.is_simulated() ? TensorView{} : scales.view(),
             stream, given, test.scale_ub);
    const std::string name = path + test.name;
    expect_bytes(name + "/q", q, golden(name + "/q"));
    if (golden.has(name + "/scales")) expect_bytes(name, scales, golden(name + "/scales"));
    if (test.is_static && !scheme.needs_tensor_scale()) expect_bytes(name, scales, static_scale);
    if (!golden.has(name + "/y")) return;
    const Tensor y(DType::kBF16, {num_rows, hidden}, device);
    dequantize(q, scales, scheme, y, stream, given);
    expect_bytes(name + "/y", y, golden(name + "/y"));
  });
}

}  // namespace switchyard::test
