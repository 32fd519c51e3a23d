// SPDX-License-Identifier: Apache-2.0
//
// exact_experts.cpp: "exact" experts: both GEMMs in one fixed order (cpu/gemm.h), so that a row's
// result has the same bits in every batch and on every machine. Weights are repacked here, once:
// bf16 stays 16 bits wide, f16, f32 and dequantized e4m3 take 32.
#include <algorithm>
#include <array>

#include "cpu/weights.h"
#include "moe/tiled_experts.h"

namespace switchyard {
namespace {

// Weights come from memory once for so many rows; a multiple of 12 and 6, the rows of the kernels.
constexpr std::int64_t kTileRows = 96;

class ExactGemms final : public ExpertGemms {
 public:
  explicit ExactGemms(const ExpertWeights& weights)
      : gate_up_(std::array<WeightTensor, 2>{
            {{weights.gate, weights.gate_scale}, {weights.up, weights.up_scale}}}),
        down_(std::array<WeightTensor, 1>{{{weights.down, weights.down_scale}}}) {}

  std::int64_t max_tile_rows() const override { return kTileRows; }
  std::int64_t gate_up_stride() const override { return gate_up_.num_columns(); }
  std::int64_t down_stride() const override { return down_.num_columns(); }
  std::int64_t up_column() const override { return gate_up_.num_columns() / 2; }

  std::size_t scratch_bytes(std::int64_t tile_rows) const override {
    const std::int64_t floats = std::max(gemm_scratch_floats(tile_rows, gate_up_.depth()),
                                         gemm_scratch_floats(tile_rows, down_.depth()));
    return static_cast<std::size_t>(floats) * sizeof(float);
  }

  void gate_up(std::int64_t expert, const float* x, std::int64_t num_rows, float* y,
               std::byte* scratch) override {
    multiply(gate_up_, expert, x, num_rows, y, scratch);
  }
  void down(std::int64_t expert, const float* h, std::int64_t num_rows, float* y,
            std::byte* scratch) override {
    multiply(down_, expert, h, num_rows, y, scratch);
  }

 private:
  static void multiply(const PackedWeights& weights, std::int64_t expert, const float* x,
                       std::int64_t num_rows, float* y, std::byte* scratch) {
    const PackedMatrix matrix = weights.expert(expert);
    gemm(x, matrix.depth, num_rows, matrix, y, weights.num_columns(),
         reinterpret_cast<float*>(scratch));
  }

  PackedWeights gate_up_;
  PackedWeights down_;
};

}  // namespace

std::unique_ptr<Experts> make_exact_experts(const ExpertWeights& weights,
                                            const ExpertOptions& options) {
  const ExpertShape shape = check_weights("make_exact_experts", weights);
  check_options("make_exact_experts", options);
  return std::make_unique<TiledExperts>("exact", true, shape, options,
                                        std::make_unique<ExactGemms>(weights));
}

}  // namespace switchyard
