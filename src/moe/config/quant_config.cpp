// SPDX-License-Identifier: Apache-2.0
//
// quant_config.cpp: what a quantization configuration may hold, and what follows from it. Every
// builder ends in the constructor, so each rule about stored values is checked there, once.

#include "switchyard/quant_config.h"

#include <utility>

#include "core/bytes.h"
#include "core/fail.h"

namespace switchyard {
namespace {

bool is_block(const std::optional<GroupShape>& shape) {
  return shape.has_value() && !shape->is_per_tensor() && !shape->is_per_token();
}

/// "none" or "{128, 128}".
std::string describe(const std::optional<GroupShape>& shape) {
  return shape.has_value() ? fmt::format("{{{}, {}}}", shape->row, shape->col) : "none";
}

void check_alike(const char* what, const QuantDesc& first, const QuantDesc& second) {
  require(first.dtype == second.dtype && first.shape == second.shape, Errc::kInvalidArgument,
          "quant_config: {}1 is {} with shape {} and {}2 is {} with shape {}, must be alike", what,
          name_of(first.dtype), describe(first.shape), what, name_of(second.dtype),
          describe(second.shape));
}

void check_shape(const char* what, const std::optional<GroupShape>& shape) {
  if (!is_block(shape)) return;
  require(shape->row >= -1 && (shape->col == -1 || shape->col >= 1), Errc::kInvalidArgument,
          "quant_config: {} has shape {}, must be at least 0 rows and 1 column, or -1 for all",
          what, describe(shape));
}

// Formats with their own scales accept no other grouping.
void check_activation(const QuantDesc& a1) {
  const QuantDType dtype = a1.dtype;
  require(dtype <= QuantDType::kMxint8 && dtype != QuantDType::kInt4, Errc::kInvalidArgument,
          "quant_config: activations are {}, which is for weights only", name_of(dtype));
  if (dtype == QuantDType::kNone) return;
  require(
      !is_block(a1.shape) || (a1.shape->row >= 1 && a1.shape->col >= 1), Errc::kInvalidArgument,
      "quant_config: {} activations with shape {}, must be {{-1, -1}}, {{1, -1}} or a block of at "
      "least 1 row and 1 column",
      name_of(dtype), describe(a1.shape));
  if (is_element_type(dtype) || !a1.shape.has_value() || a1.shape->is_per_tensor()) return;
  const bool is_mx = is_ocp_mx(dtype) || dtype == QuantDType::kMxfp8;
  require(is_mx && is_block(a1.shape) && a1.shape->col == kOcpMxBlock, Errc::kInvalidArgument,
          "quant_config: {} activations with shape {}, but the format has scales of its own; leave "
          "the shape out{}",
          name_of(dtype), describe(a1.shape), is_mx ? " or give {1, 32}" : "");
}

void check_extras(const QuantExtras& extras, const QuantDesc& a1) {
  require(extras.mx_alignment >= 0, Errc::kInvalidArgument,
          "quant_config: mx_alignment is {}, must be at least 0", extras.mx_alignment);
  require(extras.scale_format <= ScaleFormat::kE8M0Packed, Errc::kInvalidArgument,
          "quant_config: scale_format is {}, must be kF32, kF32PowerOfTwo or kE8M0Packed",
          static_cast<int>(extras.scale_format));
  if (extras.scale_format == ScaleFormat::kF32) return;
  require(
      a1.dtype == QuantDType::kFp8E4M3 && is_block(a1.shape) && a1.shape->col == 128,
      Errc::kInvalidArgument,
      "quant_config: power-of-two scales (UE8M0) with {} activations of shape {}, must be fp8_e4m3 "
      "in blocks of 128 columns",
      name_of(a1.dtype), describe(a1.shape));
}

TensorView tensor_of(const char* name, const ScaleSource& source) {
  const TensorView* tensor = std::get_if<TensorView>(&source);
  require(tensor != nullptr, Errc::kInvalidArgument,
          "{}_scale: the slot holds a precision object, not scales; ask {}_precision()", name,
          name);
  return *tensor;
}

std::shared_ptr<void> precision_of(const char* name, const ScaleSource& source) {
  if (const auto* precision = std::get_if<std::shared_ptr<void>>(&source)) return *precision;
  require(!std::get<TensorView>(source).has_value(), Errc::kInvalidArgument,
          "{}_precision: the slot holds scales, not a precision object; ask {}_scale()", name,
          name);
  return nullptr;
}

void check_sizes(const char* function, std::int64_t max_tokens, std::int64_t hidden) {
  require(max_tokens >= 0 && hidden >= 0, Errc::kInvalidArgument,
          "{}: max_tokens is {} and hidden is {}, must be at least 0", function, max_tokens,
          hidden);
}

}  // namespace

QuantShapes quant_flags_to_group_shape(QuantDType dtype, bool per_act_token_quant,
                                       bool per_out_ch_quant,
                                       const std::optional<BlockShape>& block_shape) {
  if (block_shape.has_value()) {
    const auto [row, col] = *block_shape;
    require(!per_act_token_quant && !per_out_ch_quant, Errc::kInvalidArgument,
            "quant_config: block_shape is {{{}, {}}} and {} is set, must be one of the two", row,
            col, per_act_token_quant ? "per_act_token_quant" : "per_out_ch_quant");
    require(row >= 1 && col >= 1, Errc::kInvalidArgument,
            "quant_config: block_shape is {{{}, {}}}, must be sides of at least 1", row, col);
    return {GroupShape{row, col}, GroupShape{row, col}};
  }
  QuantShapes shapes;
  if (dtype != QuantDType::kNone) shapes.activation = group_shapes::kPerTensor;
  if (per_act_token_quant) shapes.activation = group_shapes::kPerToken;
  if (per_out_ch_quant) shapes.weight = group_shapes::kPerToken;
  return shapes;
}

QuantConfig::QuantConfig(QuantDesc a1, QuantDesc a2, QuantDesc w1, QuantDesc w2,
                         const QuantExtras& extras)
    : a1_(std::move(a1)),
      a2_(std::move(a2)),
      w1_(std::move(w1)),
      w2_(std::move(w2)),
      extras_(extras) {
  check_alike("a", a1_, a2_);
  check_alike("w", w1_, w2_);
  check_shape("a1", a1_.shape);
  check_shape("w1", w1_.shape);
  check_activation(a1_);
  require(w1_.dtype <= QuantDType::kMxint8, Errc::kInvalidArgument,
          "quant_config: weight dtype is {}, must be from 0 to 12", static_cast<int>(w1_.dtype));
  check_extras(extras_, a1_);
}

std::optional<BlockShape> QuantConfig::block_shape() const {
  if (!is_block(a1_.shape)) return std::nullopt;
  return BlockShape{a1_.shape->row, a1_.shape->col};
}

TensorView QuantConfig::a1_scale() const { return tensor_of("a1", a1_.scale); }
TensorView QuantConfig::a2_scale() const { return tensor_of("a2", a2_.scale); }
TensorView QuantConfig::w1_scale() const { return tensor_of("w1", w1_.scale); }
TensorView QuantConfig::w2_scale() const { return tensor_of("w2", w2_.scale); }
std::shared_ptr<void> QuantConfig::w1_precision() const { return precision_of("w1", w1_.scale); }
std::shared_ptr<void> QuantConfig::w2_precision() const { return precision_of("w2", w2_.scale); }

std::optional<std::string> QuantConfig::config_name(DType in_dtype) const {
  if (use_fp8_w8a8()) return "fp8_w8a8";
  if (use_fp8_w8a16()) return "fp8_w8a16";
  if (use_int8_w8a16()) return "int8_w8a16";
  if (use_int4_w4a16()) return "int4_w4a16";
  if (ocp_mx_scheme().has_value()) return std::nullopt;
  if (in_dtype == DType::kF32) return "float32";
  return std::nullopt;
}

std::optional<std::array<std::int64_t, 2>> QuantConfig::scale_shape(std::int64_t max_tokens,
                                                                    std::int64_t hidden) const {
  check_sizes("scale_shape", max_tokens, hidden);
  if (!is_quantized()) return std::nullopt;
  if (const auto block = block_shape()) {
    const std::int64_t columns = (*block)[1];
    return {{max_tokens, hidden / columns + (hidden % columns != 0 ? 1 : 0)}};
  }
  if (per_act_token_quant()) return {{max_tokens, 1}};
  return {{1, 1}};
}

std::optional<std::array<std::int64_t, 3>> QuantConfig::batched_scale_shape(
    std::int64_t num_experts, std::int64_t max_tokens, std::int64_t hidden) const {
  require(num_experts >= 0, Errc::kInvalidArgument,
          "batched_scale_shape: num_experts is {}, must be at least 0", num_experts);
  const auto shape = scale_shape(max_tokens, hidden);
  if (!shape.has_value()) return std::nullopt;
  return {{num_experts, (*shape)[0], (*shape)[1]}};
}

}  // namespace switchyard
