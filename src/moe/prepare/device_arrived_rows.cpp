// SPDX-License-Identifier: Apache-2.0

#include "moe/prepare/device_arrived_rows.h"

#include <algorithm>

#include "switchyard/quant.h"
#include "switchyard/quantize_batched.h"
#include "switchyard/scale_layout.h"

#include "core/fail.h"
#include "quant/scheme.h"

namespace switchyard {
namespace {

// Rows that hold tokens are the first ones, without gaps.
bool is_dense(const ExchangeConfig& wire) {
  return wire.layout == Layout::kCompact || wire.layout == Layout::kAllGather ||
         (wire.layout == Layout::kExpanded && wire.expert_alignment == 1);
}

void require_supported(const ExchangeConfig& wire, const QuantScheme& scheme,
                       const TensorView& static_scale) {
  require(scheme.group != ScaleGroup::kTensor || static_scale.has_value() || is_dense(wire),
          Errc::kNotSupported,
          "device prepare_finalize: scheme is {} without static_scale and layout {}{}; on GPUs the "
          "largest magnitude is found in rows without gaps only: give static_scale",
          name_of(scheme), name_of(wire.layout), wire.expert_alignment > 1 ? ", aligned" : "");
  require(!scheme.is_simulated() || wire.scheme.is_quantized() || wire.scheme.dtype == DType::kBF16,
          Errc::kNotSupported,
          "device prepare_finalize: rows travel as {} for {}, must be bf16 or quantized",
          name_of(wire.scheme), name_of(scheme));
}

// Rows [N, S], or whatever the layout, as one block for each expert.
TensorView batched_view(const ScaleBlocks& blocks, const TensorView& memory) {
  return view_batched_scales(memory.data(), blocks.dtype, blocks.block.layout, blocks.num_blocks,
                             blocks.block.num_rows, blocks.block.num_scales);
}

}  // namespace

DeviceArrivedRows::DeviceArrivedRows(const ExchangeConfig& wire,
                                     const PrepareFinalizeConfig& config, std::int64_t num_rows,
                                     std::int64_t num_blocks, const TensorView& static_scale,
                                     DeviceTensors& tensors)
    : wire_(wire.scheme),
      scheme_(config.scheme),
      hidden_(config.hidden),
      static_scale_(static_scale) {
  require_supported(wire, scheme_, static_scale);
  const bool is_batched = wire.layout == Layout::kBatched;
  num_experts_ = is_batched ? num_blocks : 1;
  const std::int64_t capacity = num_rows / std::max<std::int64_t>(1, num_experts_);
  const bool narrows = wire_.is_quantized() && !wire_.is_simulated();
  if (narrows) narrow_ = tensors.allocate(DType::kBF16, {num_rows, hidden_});
  if (narrows && scheme_ == schemes::kNone) return;
  all_rows_ =
      tensors.allocate_copy<std::int32_t>(DType::kI32, {1}, {static_cast<std::int32_t>(num_rows)});
  rows_ = tensors.allocate(stored_dtype(scheme_), {num_experts_, capacity, hidden_});
  if (!scheme_.is_quantized() || scheme_.is_simulated()) return;
  if (scheme_.group == ScaleGroup::kTensor) {
    scales_ = tensors.allocate(DType::kF32, {num_experts_, 1, 1});
    return;
  }
  const DType dtype = scale_dtype(scheme_);
  blocks_ = {{config.scale_layout, capacity, num_scales(scheme_, hidden_), bits_of(dtype) / 8},
             dtype,
             num_experts_,
             is_batched};
  const TensorView memory =
      tensors.allocate(DType::kU8, {static_cast<std::int64_t>(blocks_.num_bytes())});
  tensors.clear(memory);  // the padding of tiles stays 0
  scales_ = batched_view(blocks_, memory);
}

TensorView DeviceArrivedRows::shaped(const TensorView& rows, std::int64_t capacity,
                                     bool is_batch) const {
  return is_batch ? TensorView(rows.data(), rows.dtype(), {num_experts_, capacity, hidden_})
                  : TensorView(rows.data(), rows.dtype(), {num_experts_ * capacity, hidden_});
}

// Of a call: its blocks, and all of them as the experts see them.
DeviceArrivedRows::Scales DeviceArrivedRows::scales_of(std::int64_t capacity) const {
  if (!scales_.has_value()) return {};
  if (scheme_.group == ScaleGroup::kTensor) {
    const TensorView own(scales_.data(), DType::kF32, {1});
    return {scales_, static_scale_.has_value() ? static_scale_ : own};
  }
  ScaleBlocks blocks = blocks_;
  blocks.block.num_rows = capacity;
  return {batched_view(blocks, scales_), blocks.view(scales_.data())};
}

void DeviceArrivedRows::quantize(const TensorView& counts, DeviceExpertRows& experts,
                                 Stream stream) const {
  const bool is_batch = experts.rows.num_dims() == 3;
  const std::int64_t capacity = experts.rows.shape(is_batch ? 1 : 0);
  TensorView from = shaped(experts.rows, capacity, false);
  if (narrow_.has_value()) {
    const TensorView narrow = shaped(narrow_, capacity, false);
    if (num_experts_ > 0) {
      dequantize(from, experts.scales, wire_, narrow, stream, experts.tensor_scale);
    }
    from = narrow;
  }
  const Scales scales = scales_of(capacity);
  experts.scheme = scheme_;
  experts.rows = shaped(rows_.has_value() ? rows_ : from, capacity, is_batch);
  experts.scales = scales.flat;
  experts.tensor_scale = scheme_.needs_tensor_scale() ? static_scale_ : TensorView();
  experts.scale_layout = blocks_.block.layout;
  if (!rows_.has_value() || experts.rows.num_elements() == 0) return;
  const bool takes_scale = scheme_.group == ScaleGroup::kTensor || scheme_.needs_tensor_scale();
  quantize_batched(shaped(from, capacity, true), counts.has_value() ? counts : all_rows_, scheme_,
                   shaped(rows_, capacity, true), scales.blocks, stream,
                   takes_scale ? static_scale_ : TensorView());
}

}  // namespace switchyard
