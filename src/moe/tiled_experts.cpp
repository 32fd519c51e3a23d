// SPDX-License-Identifier: Apache-2.0
//
// Scratch, for a tile of T rows: x and the second result share T x max(H, down_stride) floats, the
// first result has T x gate_up_stride, the activation T x I; then what the GEMMs and the rounding
// want. With one intermediate scale a tensor the activation is kept for all rows of an expert,
// because the scale is known only after the last of them.
#include "moe/tiled_experts.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/bytes.h"
#include "cpu/swiglu.h"
#include "quant/rows.h"

namespace switchyard {
namespace {

constexpr std::size_t kAlignment = 64;

// Cuts a block of memory into aligned parts. With a null base it only counts.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}

  std::byte* take(std::size_t bytes) {
    std::byte* part = base_ == nullptr ? nullptr : base_ + used_;
    used_ = checked_add(used_, align_up(bytes, kAlignment));
    return part;
  }
  float* take_floats(std::int64_t rows, std::int64_t columns) {
    const auto count = static_cast<std::size_t>(checked_mul(rows, columns));
    return reinterpret_cast<float*>(take(checked_mul(count, sizeof(float))));
  }
  std::size_t used_bytes() const { return used_; }

 private:
  std::byte* base_;
  std::size_t used_ = 0;
};

// Scales of a row, contiguous: in place, or copied.
const void* row_scales(const TensorView& scales, const QuantScheme& scheme, std::int64_t row,
                       std::uint32_t* copy) {
  if (!scales.has_value()) return nullptr;
  const auto* words = scales.as<const std::uint32_t>();
  if (scheme.group == ScaleGroup::kTensor) return words;
  words += row * scales.stride(0);
  if (scales.shape(1) == 1 || scales.stride(1) == 1) return words;
  for (std::int64_t s = 0; s < scales.shape(1); ++s) {
    std::memcpy(copy + s, words + s * scales.stride(1), sizeof(std::uint32_t));
  }
  return copy;
}

float tensor_scale_of(const ExpertRows& input) {
  if (input.scheme.group == ScaleGroup::kTensor) return *input.scales.as<float>();
  return input.tensor_scale.has_value() ? *input.tensor_scale.as<float>() : 1.0f;
}

}  // namespace

struct TiledExperts::Scratch {
  float* x = nullptr;  // [tile, H]; later the second result, [tile, down_stride]
  float* gate_up = nullptr;
  float* h = nullptr;
  std::byte* gemm = nullptr;
  std::byte* rounding = nullptr;
  std::uint32_t* scales = nullptr;  // of one input row
  std::size_t bytes = 0;
};

TiledExperts::TiledExperts(std::string name, bool has_fixed_order, const ExpertShape& shape,
                           const ExpertOptions& options, std::unique_ptr<ExpertGemms> gemms)
    : name_(std::move(name)),
      has_fixed_order_(has_fixed_order),
      shape_(shape),
      options_(options),
      gemms_(std::move(gemms)) {}

bool TiledExperts::is_batch_invariant() const {
  return has_fixed_order_ && options_.intermediate.group != ScaleGroup::kTensor;
}

std::int64_t TiledExperts::group_rows(std::int64_t num_rows) const {
  if (options_.intermediate.group == ScaleGroup::kTensor) return num_rows;
  return std::min(num_rows, gemms_->max_tile_rows());
}

TiledExperts::Scratch TiledExperts::carve(std::int64_t num_rows, std::byte* base) const {
  const std::int64_t tile = std::min(num_rows, gemms_->max_tile_rows());
  Carver carver(base);
  Scratch scratch;
  scratch.x = carver.take_floats(tile, std::max(shape_.hidden, gemms_->down_stride()));
  scratch.gate_up = carver.take_floats(tile, gemms_->gate_up_stride());
  scratch.h = carver.take_floats(group_rows(num_rows), shape_.intermediate);
  scratch.gemm = carver.take(gemms_->scratch_bytes(tile));
  scratch.rounding =
      carver.take(intermediate_scratch_bytes(options_.intermediate, shape_.intermediate));
  // A scale for every element is the most that any scheme has.
  scratch.scales = reinterpret_cast<std::uint32_t*>(carver.take_floats(1, shape_.hidden));
  scratch.bytes = carver.used_bytes();
  return scratch;
}

std::size_t TiledExperts::workspace_bytes(std::int64_t num_rows) const {
  require(num_rows >= 0, Errc::kInvalidArgument, "workspace_bytes: {} rows, want at least 0",
          num_rows);
  if (num_rows == 0) return 0;
  return carve(num_rows, nullptr).bytes + kAlignment;  // the workspace may start anywhere
}

void TiledExperts::apply(const ExpertRows& input, const TensorView& output,
                         std::span<std::byte> workspace) {
  const std::int64_t num_rows = input.rows.has_value() ? input.rows.shape(0) : 0;
  check_apply(shape_, input, output, workspace.size(), workspace_bytes(num_rows));
  if (num_rows == 0) return;
  const auto address = reinterpret_cast<std::uintptr_t>(workspace.data());
  const Scratch scratch =
      carve(num_rows, workspace.data() + (align_up(address, kAlignment) - address));
  for (std::int64_t expert = 0; expert < shape_.num_experts; ++expert) {
    const std::int64_t first = input.first_row[static_cast<std::size_t>(expert)];
    const std::int64_t count = input.num_rows[static_cast<std::size_t>(expert)];
    const std::int64_t step = group_rows(num_rows);
    for (std::int64_t at = 0; at < count; at += step) {
      run(input, {expert, first + at, std::min(step, count - at)}, output, scratch);
    }
  }
}

void TiledExperts::run(const ExpertRows& input, const RowRange& group, const TensorView& output,
                       const Scratch& scratch) {
  const std::int64_t step = gemms_->max_tile_rows();
  const auto for_each_tile = [&](const auto& body) {
    for (std::int64_t at = 0; at < group.count; at += step) {
      const RowRange tile{group.expert, group.first + at, std::min(step, group.count - at)};
      body(tile, scratch.h + at * shape_.intermediate);
    }
  };
  for_each_tile([&](const RowRange& tile, float* h) { first_half(input, tile, h, scratch); });
  round_intermediate(options_.intermediate, group.count, shape_.intermediate, scratch.h,
                     scratch.rounding);
  for_each_tile([&](const RowRange& tile, float* h) { second_half(output, tile, h, scratch); });
}

void TiledExperts::load_rows(const ExpertRows& input, const RowRange& tile,
                             const Scratch& scratch) const {
  const auto row_bytes =
      input.rows.stride(0) * static_cast<std::int64_t>(bits_of(input.rows.dtype())) / 8;
  for (std::int64_t r = 0; r < tile.count; ++r) {
    const std::int64_t row = tile.first + r;
    const std::byte* elements = input.rows.as<const std::byte>() + row * row_bytes;
    const void* scales = row_scales(input.scales, input.scheme, row, scratch.scales);
    dequantize_row(input.scheme, elements, scales, input.rows.dtype(), shape_.hidden,
                   scratch.x + r * shape_.hidden, tensor_scale_of(input));
  }
}

void TiledExperts::first_half(const ExpertRows& input, const RowRange& tile, float* h,
                              const Scratch& scratch) {
  load_rows(input, tile, scratch);
  gemms_->gate_up(tile.expert, scratch.x, tile.count, scratch.gate_up, scratch.gemm);
  swiglu(scratch.gate_up, scratch.gate_up + gemms_->up_column(), gemms_->gate_up_stride(),
         tile.count, shape_.intermediate, h);
}

void TiledExperts::second_half(const TensorView& output, const RowRange& tile, const float* h,
                               const Scratch& scratch) {
  float* y = scratch.x;
  gemms_->down(tile.expert, h, tile.count, y, scratch.gemm);
  for (std::int64_t r = 0; r < tile.count; ++r) {
    f32_to_bf16(y + r * gemms_->down_stride(), shape_.hidden,
                output.as<std::uint16_t>() + (tile.first + r) * output.stride(0));
  }
}

}  // namespace switchyard
