// SPDX-License-Identifier: Apache-2.0
//
// Scratch for a tile of T rows: x and the second result share T x max(H, columns of down) floats,
// the first result has T x columns of gate_up floats, and the activation T x I; the GEMMs and the
// rounding add their own. With a dynamic per-tensor scale the activations of all rows of an expert
// are kept, because the scale is known only after the last row.
#include "moe/experts/tiled_experts.h"

#include <algorithm>
#include <array>

#include "core/bytes.h"
#include "core/carver.h"
#include "cpu/intermediate.h"
#include "quant/bits.h"
#include "quant/rows.h"

namespace switchyard {
namespace {

constexpr std::size_t kTileAlignment = 64;

class TiledExperts final : public Experts {
 public:
  TiledExperts(const ExpertKind& kind, const ExpertShape& shape, const ExpertWeights& weights,
               const ExpertOptions& options);

  std::string_view name() const override { return name_; }
  std::optional<std::int32_t> num_local_experts() const override {
    return static_cast<std::int32_t>(shape_.num_experts);
  }
  DType output_dtype() const override { return output_dtype_; }
  bool is_batch_invariant() const override { return has_fixed_order_ && !rounds_together(); }
  std::size_t workspace_bytes(const TensorView& rows) const override;
  void apply(const ExpertRows& input, const TensorView& output, std::span<std::byte> workspace,
             Stream stream) override;

 private:
  struct Scratch {
    float* x = nullptr;  // [tile, H]; then the second result
    float* gate_up = nullptr;
    float* h = nullptr;
    std::byte* gemm = nullptr;
    std::byte* rounding = nullptr;
    std::byte* scales = nullptr;  // of one input row
    std::size_t bytes = 0;
  };
  struct RowRange {
    std::int64_t expert;
    std::int64_t first;
    std::int64_t count;
  };

  Scratch carve(std::int64_t num_rows, std::byte* base) const;
  /// True when the rounding of a row depends on the other rows of its expert.
  bool rounds_together() const;
  /// Rows of an expert whose activations are rounded together.
  std::int64_t group_rows(std::int64_t num_rows) const;
  void run(const InputReader& input, const RowRange& group, const TensorView& output,
           const Scratch& scratch);
  void first_half(const InputReader& input, const RowRange& tile, float* h, const Scratch& scratch);
  void second_half(const TensorView& output, const RowRange& tile, const float* h,
                   const Scratch& scratch);

  const char* name_;
  bool has_fixed_order_;
  std::int64_t max_tile_rows_;
  ExpertShape shape_;
  QuantScheme intermediate_;
  DType output_dtype_;
  Activation activation_;
  std::vector<float> intermediate_scale_;  // empty, or [L]
  std::vector<float> gate_bias_;           // empty, or [L, I]
  std::vector<float> up_bias_;
  std::vector<float> down_bias_;  // empty, or [L, H]
  std::unique_ptr<ExpertGemm> gate_up_;
  std::unique_ptr<ExpertGemm> down_;
};

TiledExperts::TiledExperts(const ExpertKind& kind, const ExpertShape& shape,
                           const ExpertWeights& weights, const ExpertOptions& options)
    : name_(kind.name),
      has_fixed_order_(kind.has_fixed_order),
      max_tile_rows_(kind.max_tile_rows),
      shape_(shape),
      intermediate_(options.intermediate),
      output_dtype_(output_dtype_of(options)),
      activation_(options.activation),
      intermediate_scale_(expert_scalars(options.intermediate_scale, shape.num_experts)),
      gate_bias_(widen_bias(weights.gate_bias)),
      up_bias_(widen_bias(weights.up_bias)),
      down_bias_(widen_bias(weights.down_bias)),
      gate_up_(kind.make_gemm(std::array{gate_of(weights), up_of(weights)})),
      down_(kind.make_gemm(std::array{down_of(weights)})) {}

bool TiledExperts::rounds_together() const {
  return intermediate_.group == ScaleGroup::kTensor && intermediate_scale_.empty();
}

std::int64_t TiledExperts::group_rows(std::int64_t num_rows) const {
  return rounds_together() ? num_rows : std::min(num_rows, max_tile_rows_);
}

TiledExperts::Scratch TiledExperts::carve(std::int64_t num_rows, std::byte* base) const {
  const std::int64_t tile = std::min(num_rows, max_tile_rows_);
  Carver carver(base, kTileAlignment);
  Scratch scratch;
  scratch.x = carver.carve_floats(tile, std::max(shape_.hidden, down_->num_columns()));
  scratch.gate_up = carver.carve_floats(tile, gate_up_->num_columns());
  scratch.h = carver.carve_floats(group_rows(num_rows), shape_.intermediate);
  scratch.gemm = carver.carve(std::max(gate_up_->scratch_bytes(tile), down_->scratch_bytes(tile)));
  scratch.rounding = carver.carve(intermediate_scratch_bytes(intermediate_, shape_.intermediate));
  // 4 bytes of scale per element is the maximum over all schemes.
  scratch.scales = reinterpret_cast<std::byte*>(carver.carve_floats(1, shape_.hidden));
  scratch.bytes = carver.used_bytes();
  return scratch;
}

std::size_t TiledExperts::workspace_bytes(const TensorView& rows) const {
  const int num_dims = rows.num_dims();
  require(num_dims == 2 || num_dims == 3, Errc::kInvalidArgument,
          "workspace_bytes: rows is {}, must be [N, H] or [L, C, H]", rows.describe());
  const std::int64_t num_rows =
      num_dims == 3 ? checked_mul(rows.shape(0), rows.shape(1)) : rows.shape(0);
  if (num_rows == 0) return 0;
  return carve(num_rows, nullptr).bytes + kTileAlignment;  // the workspace may be unaligned
}

void TiledExperts::apply(const ExpertRows& given, const TensorView& given_output,
                         std::span<std::byte> workspace, Stream stream) {
  require_experts_device(device(), given, given_output, stream);
  ExpertRows input = given;
  input.rows = flat_rows("rows", given.rows);
  const TensorView output = flat_rows("output", given_output);
  const bool is_matrix = input.rows.num_dims() == 2;
  check_apply(shape_, input, output, output_dtype_, workspace.size(),
              is_matrix ? workspace_bytes(input.rows) : 0);
  const std::int64_t num_rows = input.rows.shape(0);
  if (num_rows == 0) return;
  const Scratch scratch = carve(num_rows, aligned(workspace.data(), kTileAlignment));
  const InputReader reader(input);
  for (std::int64_t expert = 0; expert < shape_.num_experts; ++expert) {
    const std::int64_t first = input.first_row.as<std::int64_t>()[expert];
    const std::int64_t count = input.num_rows.as<std::int32_t>()[expert];
    const std::int64_t step = group_rows(num_rows);
    for (std::int64_t at = 0; at < count; at += step) {
      run(reader, {expert, first + at, std::min(step, count - at)}, output, scratch);
    }
  }
}

void TiledExperts::run(const InputReader& input, const RowRange& group, const TensorView& output,
                       const Scratch& scratch) {
  const auto for_each_tile = [&](const auto& body) {
    for (std::int64_t at = 0; at < group.count; at += max_tile_rows_) {
      const std::int64_t count = std::min(max_tile_rows_, group.count - at);
      body(RowRange{group.expert, group.first + at, count}, scratch.h + at * shape_.intermediate);
    }
  };
  std::optional<float> scale;
  if (!intermediate_scale_.empty()) {
    scale = intermediate_scale_[static_cast<std::size_t>(group.expert)];
  }
  for_each_tile([&](const RowRange& tile, float* h) { first_half(input, tile, h, scratch); });
  round_intermediate(intermediate_, group.count, shape_.intermediate, scratch.h, scratch.rounding,
                     scale);
  for_each_tile([&](const RowRange& tile, float* h) { second_half(output, tile, h, scratch); });
}

void TiledExperts::first_half(const InputReader& input, const RowRange& tile, float* h,
                              const Scratch& scratch) {
  const std::int64_t width = shape_.intermediate;
  const std::int64_t stride = gate_up_->num_columns();
  float* gate = scratch.gate_up;
  float* up = gate + stride / 2;
  input.read(tile.expert, tile.first, tile.count, scratch.x, scratch.scales);
  gate_up_->run(tile.expert, scratch.x, tile.count, gate, scratch.gemm);
  if (!gate_bias_.empty()) {
    add_bias(gate_bias_.data() + tile.expert * width, width, tile.count, gate, stride);
  }
  if (!up_bias_.empty()) {
    add_bias(up_bias_.data() + tile.expert * width, width, tile.count, up, stride);
  }
  activate_rows(activation_, gate, up, stride, tile.count, width, h);
}

void TiledExperts::second_half(const TensorView& output, const RowRange& tile, const float* h,
                               const Scratch& scratch) {
  const std::int64_t hidden = shape_.hidden;
  const std::int64_t stride = down_->num_columns();
  float* y = scratch.x;
  down_->run(tile.expert, h, tile.count, y, scratch.gemm);
  if (!down_bias_.empty()) {
    add_bias(down_bias_.data() + tile.expert * hidden, hidden, tile.count, y, stride);
  }
  for (std::int64_t r = 0; r < tile.count; ++r) {
    const float* row = y + r * stride;
    const std::int64_t to = (tile.first + r) * output.stride(0);
    if (output_dtype_ == DType::kF32) {
      std::transform(row, row + hidden, output.as<float>() + to, canonical_f32);
    } else {
      f32_to_bf16(row, hidden, output.as<std::uint16_t>() + to);
    }
  }
}

}  // namespace

std::unique_ptr<Experts> make_tiled_experts(const ExpertKind& kind, const ExpertWeights& weights,
                                            const ExpertOptions& options) {
  const ExpertShape shape = check_weights(kind.function, weights);
  check_options(kind.function, shape, options);
  return std::make_unique<TiledExperts>(kind, shape, weights, options);
}

}  // namespace switchyard
