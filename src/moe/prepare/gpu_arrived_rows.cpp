// SPDX-License-Identifier: Apache-2.0

#include <algorithm>

#include "switchyard/quant.h"
#include "switchyard/quantize_batched.h"
#include "switchyard/scale_layout.h"

#include "core/fail.h"
#include "cuda/quantize/quantize.h"
#include "device/cuda_module.h"
#include "exchange/scale_blocks.h"
#include "moe/prepare/arrived_rows.h"
#include "quant/scheme.h"

namespace switchyard {
namespace {

void require_supported(const ExchangeConfig& wire, const QuantScheme& scheme) {
  require(!scheme.is_simulated() || wire.scheme.is_quantized() || wire.scheme.dtype == DType::kBF16,
          Errc::kNotSupported,
          "prepare_finalize: rows travel as {} for {}, must be bf16 or quantized",
          name_of(wire.scheme), name_of(scheme));
}

// Rows [N, S], or whatever the layout, as one block for each expert.
TensorView batched_view(const ScaleBlocks& blocks, const TensorView& memory) {
  return view_batched_scales(memory.data(), blocks.dtype, blocks.block.layout, blocks.num_blocks,
                             blocks.block.num_rows, blocks.block.num_scales, memory.device());
}

// Scales of a batch whose rows follow one another, as those of one matrix.
TensorView flat_scales(const TensorView& scales) {
  if (scales.num_dims() != 3) return scales;
  return TensorView(scales.data(), scales.dtype(),
                    {scales.shape(0) * scales.shape(1), scales.shape(2)}, scales.device());
}

/// Rows that hold no token may be read, never their result.
class GpuArrivedRows final : public ArrivedRows {
 public:
  explicit GpuArrivedRows(const ArrivedRowsShape& shape);
  void quantize(const TensorView& counts, Prepared& to, Stream stream) override;

 private:
  struct Scales {
    TensorView blocks;  ///< as quantize_batched takes them
    TensorView flat;    ///< as experts do
  };
  TensorView shaped(const TensorView& rows, std::int64_t capacity, bool is_batch) const;
  Scales scales_of(std::int64_t capacity) const;
  void find_tensor_scale(const ExpertRows& experts, const TensorView& counts,
                         const TensorView& from, Stream stream) const;

  QuantScheme wire_;
  QuantScheme scheme_;
  std::int64_t hidden_;
  std::int64_t num_experts_ = 1;  ///< blocks of rows with a count each
  ScaleBlocks blocks_;
  TensorView static_scale_;
  Tensor dynamic_scale_;  ///< [1] f32: of a whole tensor; absent where it is given
  Tensor all_rows_;       ///< [1] i32: as many as there can be
  Tensor narrow_;         ///< [N, H] bf16; absent where rows are quantized as they come
  Tensor rows_;           ///< [experts, rows, H]; absent for bf16
  Tensor scale_memory_;   ///< zero-filled: the padding of tiles stays 0
  TensorView scales_;     ///< as quantize_batched takes them; or absent
};

GpuArrivedRows::GpuArrivedRows(const ArrivedRowsShape& shape)
    : wire_(shape.wire.scheme),
      scheme_(shape.config.scheme),
      hidden_(shape.config.hidden),
      static_scale_(shape.static_scale) {
  require_supported(shape.wire, scheme_);
  const Device device = shape.device;
  const bool is_batched = shape.wire.layout == Layout::kBatched;
  num_experts_ = is_batched ? shape.num_blocks : 1;
  const std::int64_t capacity = shape.num_rows / std::max<std::int64_t>(1, num_experts_);
  const bool narrows = wire_.is_quantized() && !wire_.is_simulated();
  if (narrows) narrow_ = Tensor(DType::kBF16, {shape.num_rows, hidden_}, device);
  if (narrows && scheme_ == schemes::kNone) return;
  const auto num_rows = static_cast<std::int32_t>(shape.num_rows);
  all_rows_ = copy_to(TensorView::of(&num_rows, {1}), device);
  rows_ = Tensor(stored_dtype(scheme_), {num_experts_, capacity, hidden_}, device);
  if (!scheme_.is_quantized() || scheme_.is_simulated()) return;
  if (scheme_.group == ScaleGroup::kTensor) {
    scale_memory_ = Tensor(DType::kF32, {num_experts_, 1, 1}, device);
    scales_ = scale_memory_;
    if (!shape.is_dynamic_tensor()) return;
    dynamic_scale_ = Tensor(DType::kF32, {1}, device);
    static_scale_ = dynamic_scale_;
    return;
  }
  const DType dtype = scale_dtype(scheme_);
  blocks_ = {
      {shape.config.scale_layout, capacity, num_scales(scheme_, hidden_), bits_of(dtype) / 8},
      dtype,
      num_experts_,
      is_batched};
  scale_memory_ = Tensor(DType::kU8, {static_cast<std::int64_t>(blocks_.num_bytes())}, device);
  scales_ = batched_view(blocks_, scale_memory_);
}

TensorView GpuArrivedRows::shaped(const TensorView& rows, std::int64_t capacity,
                                  bool is_batch) const {
  return is_batch ? TensorView(rows.data(), rows.dtype(), {num_experts_, capacity, hidden_},
                               rows.device())
                  : TensorView(rows.data(), rows.dtype(), {num_experts_ * capacity, hidden_},
                               rows.device());
}

// Of a call: its blocks, and all of them as the experts see them.
GpuArrivedRows::Scales GpuArrivedRows::scales_of(std::int64_t capacity) const {
  if (!scales_.has_value()) return {};
  if (scheme_.group == ScaleGroup::kTensor) return {scales_, static_scale_};
  ScaleBlocks blocks = blocks_;
  blocks.block.num_rows = capacity;
  return {batched_view(blocks, scales_), blocks.view(scales_.data(), scales_.device())};
}

// Of the valid rows, wherever they lie: gaps hold anything.
void GpuArrivedRows::find_tensor_scale(const ExpertRows& experts, const TensorView& counts,
                                       const TensorView& from, Stream stream) const {
  const bool is_major = experts.first_row.has_value();
  const TensorView& num_rows = is_major ? experts.num_rows : counts;
  cuda::QuantizeJob job;
  job.scheme = scheme_;
  job.num_experts = num_rows.num_elements();
  // Rows by rank lie in blocks of one size.
  job.capacity = is_major || job.num_experts == 0 ? from.shape(0) : from.shape(0) / job.num_experts;
  job.hidden = hidden_;
  job.x = {from.data(), from.dtype(), job.capacity * hidden_, hidden_};
  job.counts = num_rows.as<std::int32_t>();
  if (is_major) job.first_row = experts.first_row.as<std::int64_t>();
  job.scales.data = dynamic_scale_.as<std::byte>();
  cuda_module().tensor_scale(job, stream);
}

void GpuArrivedRows::quantize(const TensorView& counts, Prepared& to, Stream stream) {
  ExpertRows& experts = to.experts;
  const bool is_batch = experts.rows.num_dims() == 3;
  const std::int64_t capacity = experts.rows.shape(is_batch ? 1 : 0);
  TensorView from = shaped(experts.rows, capacity, false);
  if (narrow_.view().has_value()) {
    const TensorView narrow = shaped(narrow_, capacity, false);
    if (num_experts_ > 0) {
      dequantize(from, flat_scales(experts.scales), wire_, narrow, stream, experts.tensor_scale);
    }
    from = narrow;
  }
  const bool is_dynamic = dynamic_scale_.view().has_value();
  if (is_dynamic) find_tensor_scale(experts, counts, from, stream);
  const Scales scales = scales_of(capacity);
  experts.scheme = scheme_;
  experts.rows = shaped(rows_.view().has_value() ? rows_.view() : from, capacity, is_batch);
  experts.scales = scales.flat;
  experts.tensor_scale = scheme_.needs_tensor_scale() ? static_scale_ : TensorView();
  experts.scale_layout = blocks_.block.layout;
  if (!rows_.view().has_value() || experts.rows.num_elements() == 0) return;
  const bool takes_scale = scheme_.group == ScaleGroup::kTensor || scheme_.needs_tensor_scale();
  const bool has_counts = counts.has_value() && counts.num_elements() == num_experts_;
  quantize_batched(shaped(from, capacity, true), has_counts ? counts : all_rows_.view(), scheme_,
                   shaped(rows_, capacity, true), scales.blocks, stream,
                   takes_scale ? static_scale_ : TensorView());
}

}  // namespace

std::unique_ptr<ArrivedRows> make_gpu_arrived_rows(const ArrivedRowsShape& shape) {
  return std::make_unique<GpuArrivedRows>(shape);
}

}  // namespace switchyard
