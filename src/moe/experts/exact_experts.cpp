// SPDX-License-Identifier: Apache-2.0
//
// exact_experts.cpp: "exact" experts: both GEMMs in one fixed order (cpu/gemm.h), so that a row's
// result has the same bits in every batch and on every machine. Weights are repacked here, once:
// bf16 stays 16 bits wide, all else takes 32. GPUs have kernels with the same order of sums.
#include "cpu/weights.h"
#include "moe/experts/gpu_products.h"
#include "moe/experts/tiled_experts.h"

namespace switchyard {
namespace {

// Rows per read of the weights from memory; a multiple of 12 and 6, the kernels' row counts.
constexpr std::int64_t kTileRows = 96;

class ExactGemm final : public ExpertGemm {
 public:
  explicit ExactGemm(std::span<const WeightTensor> tensors) : weights_(tensors) {}

  std::int64_t num_columns() const override { return weights_.num_columns(); }
  std::size_t scratch_bytes(std::int64_t num_rows) const override {
    return static_cast<std::size_t>(gemm_scratch_floats(num_rows, weights_.depth())) *
           sizeof(float);
  }
  void run(std::int64_t expert, const float* x, std::int64_t num_rows, float* y,
           std::byte* scratch) override {
    const PackedMatrix matrix = weights_.expert(expert);
    gemm(x, matrix.depth, num_rows, matrix, y, weights_.num_columns(),
         reinterpret_cast<float*>(scratch));
  }

 private:
  PackedWeights weights_;
};

}  // namespace

std::unique_ptr<Experts> make_exact_experts(const ExpertWeights& weights,
                                            const ExpertOptions& options, Device device) {
  constexpr const char* kFunction = "make_exact_experts";
  if (device.is_cuda()) {
    return make_gpu_experts(kFunction, "exact", make_exact_products(), weights, options, device);
  }
  const auto make_gemm = [](std::span<const WeightTensor> tensors) {
    return std::make_unique<ExactGemm>(tensors);
  };
  return make_tiled_experts({"exact", kFunction, true, kTileRows, make_gemm}, weights, options);
}

}  // namespace switchyard
