// SPDX-License-Identifier: Apache-2.0
//
// quantize_input.cpp: maps options to a scheme, and refuses invalid combinations.

#include "switchyard/quantize_input.h"

#include <cstring>
#include <string_view>

#include "core/bytes.h"
#include "core/fail.h"
#include "core/require_device.h"
#include "quant/batch_rows.h"
#include "quant/host_quantize.h"
#include "quant/rows.h"
#include "quant/scheme.h"

namespace switchyard {
namespace {

constexpr const char* kQuantizeInput = "quantize_input";

Tensor make_rows(DType dtype, std::int64_t num_rows, std::int64_t hidden) {
  return Tensor(dtype, {num_rows, hidden});
}

// Writes q and returns the scales.
OwnedScales quantize_into(const TensorView& x, const QuantScheme& scheme, ScaleLayout layout,
                          const TensorView& q, const TensorView& static_scale) {
  OwnedScales scales;
  const DType dtype = scale_dtype(scheme);
  if (scheme.group == ScaleGroup::kNone || scheme.group == ScaleGroup::kTensor) {
    if (scheme.is_quantized()) scales.memory = Tensor(dtype, {1});
    scales.view = scales.memory.view();
    host::quantize(x, scheme, q, scales.view, static_scale);
    return scales;
  }
  const bool is_tiled = layout == ScaleLayout::kSwizzled;
  require(!is_tiled || bits_of(dtype) == 8, Errc::kInvalidArgument,
          "{}: layout is kSwizzled for {} scales of {}, must be one-byte scales", kQuantizeInput,
          name_of(dtype), name_of(scheme));
  const std::int64_t width = num_scales(scheme, x.shape(1));
  scales = make_scales(dtype, is_tiled ? ScaleLayout::kRowMajor : layout, x.shape(0), width);
  host::quantize(x, scheme, q, scales.view, static_scale);
  if (!is_tiled) return scales;
  OwnedScales tiles = make_scales(dtype, layout, x.shape(0), width);
  relayout_scales(scales.view, tiles.view);
  return tiles;
}

QuantizedInput simulate(const TensorView& x, const QuantScheme& scheme,
                        const TensorView& static_scale = {}) {
  QuantizedInput out;
  out.values_memory = make_rows(x.dtype(), x.shape(0), x.shape(1));
  out.values = out.values_memory.view();
  fake_quantize(x, scheme, out.values, static_scale);
  return out;
}

// Static fp8 scales of a row: one, or one per equal part of it.
QuantizedInput quantize_with_row_scales(const TensorView& x, const TensorView& scale) {
  const std::int64_t hidden = x.shape(1);
  require(scale.dtype() == DType::kF32 && scale.num_dims() == 2 && scale.shape(0) == x.shape(0) &&
              scale.shape(1) >= 1 && hidden % scale.shape(1) == 0,
          Errc::kInvalidArgument,
          "{}: scale is {}, must be f32 [1], [{}, 1], or [{}, a divisor of {}] for fp8_e4m3",
          kQuantizeInput, scale.describe(), x.shape(0), x.shape(0), hidden);
  const BatchRows rows = check_matrix_rows(kQuantizeInput, x);
  const std::int64_t group = hidden / scale.shape(1);
  const std::int64_t group_bytes = group * (bits_of(x.dtype()) / 8);
  QuantizedInput out;
  out.values_memory = make_rows(DType::kE4M3, x.shape(0), hidden);
  out.values = out.values_memory.view();
  out.scales = scale;
  auto* q = out.values.as<std::byte>();
  for (std::int64_t m = 0; m < x.shape(0); ++m) {
    for (std::int64_t s = 0; s < scale.shape(1); ++s, q += group) {
      quantize_row(schemes::kFp8Tensor, rows.row(0, m) + s * group_bytes, x.dtype(), group, q,
                   nullptr, scale.as<float>()[m * scale.stride(0) + s * scale.stride(1)]);
    }
  }
  return out;
}

QuantizedInput quantize_with_static_scale(const TensorView& x, const QuantScheme& scheme,
                                          const TensorView& scale) {
  QuantizedInput out = quantize_input(x, scheme, ScaleLayout::kRowMajor, scale);
  out.scales = scale;
  out.scales_memory = Tensor();
  return out;
}

// fp8_e4m3 and int8, which have the same options.
QuantizedInput quantize_plain(const TensorView& x, const TensorView& scale,
                              const QuantizeInputConfig& config, const QuantScheme& token,
                              const QuantScheme& tensor) {
  const bool is_fp8 = token.dtype == DType::kE4M3;
  if (config.block_shape) {
    require(!config.per_act_token_quant, Errc::kInvalidArgument,
            "{}: per_act_token_quant with block_shape [{}, {}], must be one of them for {}",
            kQuantizeInput, (*config.block_shape)[0], (*config.block_shape)[1], config.quant_dtype);
    const std::int64_t block = (*config.block_shape)[1];
    require(block >= 1 && block <= INT32_MAX, Errc::kInvalidArgument,
            "{}: block_shape[1] is {}, must be from 1 to {} elements", kQuantizeInput, block,
            INT32_MAX);
    QuantScheme scheme = is_fp8 ? schemes::kFp8Block : schemes::kInt8Block;
    scheme.block = static_cast<std::int32_t>(block);
    return quantize_input(x, scheme);
  }
  if (config.per_act_token_quant && !(is_fp8 && scale.has_value())) return quantize_input(x, token);
  if (!scale.has_value()) return quantize_input(x, tensor);
  if (is_fp8 && scale.num_elements() != 1) return quantize_with_row_scales(x, scale);
  return quantize_with_static_scale(x, tensor, scale);
}

ScaleLayout layout_of(const QuantizeInputConfig& config) {
  return config.is_scale_swizzled ? ScaleLayout::kSwizzled : ScaleLayout::kRowMajor;
}

void refuse_block_shape(const QuantizeInputConfig& config) {
  require(!config.block_shape, Errc::kInvalidArgument,
          "{}: block_shape is given, must be absent for {}, whose blocks are fixed", kQuantizeInput,
          config.quant_dtype);
}

void refuse_per_token(const QuantizeInputConfig& config) {
  require(!config.per_act_token_quant, Errc::kInvalidArgument,
          "{}: per_act_token_quant is set, must be false for {}", kQuantizeInput,
          config.quant_dtype);
}

QuantizedInput quantize_nvfp4(const TensorView& x, const TensorView& scale,
                              const QuantizeInputConfig& config) {
  refuse_block_shape(config);
  refuse_per_token(config);
  require(scale.has_value() && scale.dtype() == DType::kF32 && scale.num_elements() == 1,
          Errc::kInvalidArgument, "{}: scale is {}, must be the global scale, f32 [1], for nvfp4",
          kQuantizeInput, scale.describe());
  return quantize_input(x, schemes::kNvfp4, layout_of(config), scale);
}

// The rows of `x`, each padded with zeros.
Tensor pad_rows(const TensorView& x, std::int64_t padded) {
  Tensor wide(x.dtype(), {x.shape(0), padded});
  const std::int64_t element_bytes = bits_of(x.dtype()) / 8;
  for (std::int64_t m = 0; m < x.shape(0) && x.shape(1) > 0; ++m) {
    std::memcpy(wide.as<std::byte>() + m * padded * element_bytes,
                x.as<std::byte>() + m * x.stride(0) * element_bytes,
                static_cast<std::size_t>(x.shape(1) * element_bytes));
  }
  return wide;
}

QuantizedInput quantize_mxfp8(const TensorView& x, const TensorView& scale,
                              const QuantizeInputConfig& config) {
  require(!scale.has_value(), Errc::kInvalidArgument, "{}: scale is {}, must be absent for mxfp8",
          kQuantizeInput, scale.describe());
  refuse_per_token(config);
  if (config.block_shape) {
    require((*config.block_shape)[0] == 1 && (*config.block_shape)[1] == 32, Errc::kInvalidArgument,
            "{}: block_shape is [{}, {}], must be none or [1, 32] for mxfp8", kQuantizeInput,
            (*config.block_shape)[0], (*config.block_shape)[1]);
  }
  require(config.mx_alignment >= 0, Errc::kInvalidArgument,
          "{}: mx_alignment is {}, must be at least 0", kQuantizeInput, config.mx_alignment);
  const std::int64_t alignment = config.mx_alignment == 0 ? 1 : config.mx_alignment;
  const std::int64_t padded = checked_add(x.shape(1), alignment - 1) / alignment * alignment;
  if (padded == x.shape(1)) return quantize_input(x, schemes::kMxfp8, layout_of(config));
  return quantize_input(pad_rows(x, padded), schemes::kMxfp8, layout_of(config));
}

QuantizedInput simulate_mx(const TensorView& x, const QuantizeInputConfig& config) {
  refuse_block_shape(config);
  refuse_per_token(config);
  require(config.quantization_emulation, Errc::kInvalidArgument,
          "{}: quantization_emulation is false, must be true for {}, which is only simulated",
          kQuantizeInput, config.quant_dtype);
  return simulate(x, *scheme_from_name(config.quant_dtype));
}

QuantizedInput simulate_fp8(const TensorView& x, const TensorView& scale,
                            const QuantizeInputConfig& config) {
  constexpr std::string_view kEnd = "a_fp8";
  const std::string_view scheme = config.ocp_mx_scheme;
  require(
      scheme.size() >= kEnd.size() && scheme.substr(scheme.size() - kEnd.size()) == kEnd,
      Errc::kInvalidArgument,
      "{}: quant_dtype is fp8 with ocp_mx_scheme \"{}\", must be a scheme that ends in a_fp8; for "
      "fp8 values say fp8_e4m3",
      kQuantizeInput, scheme);
  refuse_block_shape(config);
  refuse_per_token(config);
  return simulate(x, schemes::kFp8Tensor, scale);
}

}  // namespace

QuantizedInput quantize_input(const TensorView& x, const TensorView& scale,
                              const QuantizeInputConfig& config) {
  const std::string& dtype = config.quant_dtype;
  if (dtype.empty() || dtype == "none") {
    QuantizedInput out;
    out.values = x;
    out.scales = scale;
    return out;
  }
  check_matrix_rows(kQuantizeInput, x);
  require_host(kQuantizeInput, {{"x", x}, {"scale", scale}});
  if (dtype == "fp8_e4m3") {
    return quantize_plain(x, scale, config, schemes::kFp8Token, schemes::kFp8Tensor);
  }
  if (dtype == "int8") {
    return quantize_plain(x, scale, config, schemes::kInt8Token, schemes::kInt8Tensor);
  }
  if (dtype == "nvfp4") return quantize_nvfp4(x, scale, config);
  if (dtype == "mxfp8") return quantize_mxfp8(x, scale, config);
  if (dtype == "fp8") return simulate_fp8(x, scale, config);
  if (dtype == "mxfp4" || dtype == "mxfp6_e3m2" || dtype == "mxfp6_e2m3") {
    return simulate_mx(x, config);
  }
  fail(Errc::kInvalidArgument,
       "{}: quant_dtype is \"{}\", must be none, fp8_e4m3, int8, nvfp4, mxfp4, mxfp6_e3m2, "
       "mxfp6_e2m3, "
       "mxfp8 or fp8",
       kQuantizeInput, dtype);
}

QuantizedInput quantize_input(const TensorView& x, const QuantScheme& scheme, ScaleLayout layout,
                              const TensorView& static_scale) {
  check_scheme(kQuantizeInput, scheme);
  const BatchRows rows = check_matrix_rows(kQuantizeInput, x);
  require_host(kQuantizeInput, {{"x", x}, {"static_scale", static_scale}});
  if (scheme.is_simulated()) return simulate(x, scheme, static_scale);
  const bool is_aligned = layout == ScaleLayout::kColumnMajorAligned;
  const std::int64_t memory_rows =
      is_aligned ? checked_add(rows.capacity, std::int64_t{3}) / 4 * 4 : rows.capacity;
  QuantizedInput out;
  out.values_memory = make_rows(scheme.dtype, memory_rows, rows.hidden);
  out.values = TensorView(out.values_memory.data(), scheme.dtype, {rows.capacity, rows.hidden});
  OwnedScales made = quantize_into(x, scheme, layout, out.values, static_scale);
  out.scales_memory = std::move(made.memory);
  out.scales = made.view;
  return out;
}

void fake_quantize(const TensorView& x, const QuantScheme& scheme, const TensorView& y,
                   const TensorView& static_scale) {
  constexpr const char* kFunction = "fake_quantize";
  check_scheme(kFunction, scheme);
  const BatchRows rows = check_matrix_rows(kFunction, x);
  check_batch_codes(kFunction, y, x.dtype(), rows, rows.hidden);
  require_host(kFunction, {{"x", x}, {"y", y}, {"static_scale", static_scale}});
  if (scheme.is_simulated()) {
    host::quantize(x, scheme, y, {}, static_scale);
    return;
  }
  const QuantizedInput made = quantize_input(x, scheme, ScaleLayout::kRowMajor, static_scale);
  host::dequantize(made.values, made.scales, scheme, y, static_scale);
}

}  // namespace switchyard
