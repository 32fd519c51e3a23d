// SPDX-License-Identifier: Apache-2.0
//
// golden_layouts.h: quantize_batched in every scale layout, on either device, against
// layouts.safetensors.
#pragma once

#include <string>

#include "switchyard/quantize_batched.h"
#include "switchyard/scale_layout.h"

#include "support/golden.h"

namespace switchyard::test {

struct NamedLayout {
  const char* name;
  ScaleLayout layout;
};
inline constexpr NamedLayout kLayouts[] = {{"row", ScaleLayout::kRowMajor},
                                           {"column", ScaleLayout::kColumnMajor},
                                           {"column_aligned", ScaleLayout::kColumnMajorAligned},
                                           {"swizzled", ScaleLayout::kSwizzled}};

inline void expect_golden_batched_scheme(const Golden& golden, Stream stream,
                                         const std::string& name, const TensorView& given) {
  const Device device = stream.device();
  const std::string path = "batched/" + name + "/";
  const std::string scheme_name = name.substr(0, name.find("_static"));
  const QuantScheme scheme = scheme_from_name(scheme_name).value();
  const Tensor x = copy_to(golden("batched/x"), device);
  const Tensor counts = copy_to(golden("batched/counts"), device);
  Tensor static_scale;
  if (given.has_value()) static_scale = copy_to(given, device);
  const std::int64_t num_experts = x.shape(0);
  const auto quantize_into = [&](const TensorView& scales) {
    const Tensor q(scheme.dtype, {num_experts, x.shape(1), x.shape(2)}, device);
    quantize_batched(x, counts, scheme, q, scales, stream, static_scale);
    expect_bytes(path + "q", q, golden(path + "q"));
  };
  if (scheme.group == ScaleGroup::kTensor) {
    const Tensor scales(DType::kF32, {num_experts, 1, 1}, device);
    quantize_into(scales);
    expect_bytes(path + "scales", scales, golden(path + "scales"));
    return;
  }
  for (const NamedLayout& layout : kLayouts) {
    if (!golden.has(path + layout.name)) continue;
    const OwnedScales scales =
        make_batched_scales(scale_dtype(scheme), layout.layout, num_experts, x.shape(1),
                            num_scales(scheme, x.shape(2)), device);
    quantize_into(scales.view);
    expect_bytes(path + layout.name, scales.memory, golden(path + layout.name));
  }
}

inline void expect_golden_batched_quantize(const Golden& golden, Stream stream) {
  for (const char* scheme :
       {"fp8_block", "fp8_block_deepep", "fp8_ue8m0", "fp8_ue8m0_deepep", "fp8_token", "int8_token",
        "int8_block", "mxfp4", "mxfp8", "fp8_tensor", "int8_tensor"}) {
    expect_golden_batched_scheme(golden, stream, scheme, {});
  }
  expect_golden_batched_scheme(golden, stream, "nvfp4", golden("batched/global_scales"));
  for (const char* scheme : {"fp8_tensor_static", "int8_tensor_static"}) {
    expect_golden_batched_scheme(golden, stream, scheme, golden("batched/static_scales"));
  }
}

}  // namespace switchyard::test
