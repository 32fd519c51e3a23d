// SPDX-License-Identifier: Apache-2.0

#include "moe/experts/gpu_products.h"

#include <utility>
#include <vector>

#include "core/bytes.h"
#include "core/settings.h"
#include "device/cuda_module.h"
#include "quant/rows.h"

namespace switchyard {
namespace {

static_assert(cuda::kProductPanel == kPanel, "kernels read what PackedWeights packs");

// An expert at a time, so that the host never holds all of them: fill(e) gives `bytes` bytes.
template <typename Fill>
Tensor upload_experts(std::int64_t num_experts, std::size_t bytes, Device device,
                      const Fill& fill) {
  const Stream stream = Stream::default_of(device);
  Tensor memory(DType::kU8, {checked_mul(num_experts, static_cast<std::int64_t>(bytes))}, device);
  for (std::int64_t e = 0; e < num_experts; ++e) {
    fill(e, [&](const void* from) {
      std::byte* to = memory.as<std::byte>() + static_cast<std::size_t>(e) * bytes;
      cuda_module().copy(to, from, bytes, stream);
      cuda_module().synchronize(stream);
    });
  }
  return memory;
}

// The panels of cpu/gemm.h and its order of sums.
class ExactProducts final : public GpuProducts {
 public:
  bool has_fixed_order() const override { return true; }
  bool is_capturable(bool) const override { return true; }
  DType element() const override { return DType::kF32; }
  std::size_t scratch_bytes(std::int64_t) const override { return 0; }

  GpuMatrices upload(std::span<const WeightTensor> tensors, Device device) const override {
    GpuMatrices matrices;
    matrices.depth = tensors.front().values.shape(2);
    for (const WeightTensor& tensor : tensors) {
      matrices.num_columns += align_up(tensor.values.shape(1), kPanel);
      if (tensor.values.dtype() != DType::kBF16) matrices.dtype = DType::kF32;
    }
    const auto bytes =
        static_cast<std::size_t>(checked_mul(checked_mul(matrices.num_columns, matrices.depth),
                                             std::int64_t{bits_of(matrices.dtype)} / 8));
    const auto fill = [&](std::int64_t e, const auto& upload_one) {
      std::vector<WeightTensor> of_expert;
      for (const WeightTensor& tensor : tensors) of_expert.push_back(tensor.of_expert(e));
      const PackedWeights packed{std::span<const WeightTensor>(of_expert)};
      upload_one(packed.expert(0).panels);
    };
    matrices.memory = upload_experts(tensors.front().values.shape(0), bytes, device, fill);
    return matrices;
  }

  void begin(const cuda::RowRanges&, std::byte*, Stream) override {}
  void run(const cuda::ExpertProduct& product, Stream stream) override {
    cuda_module().exact_product(product, stream);
  }
};

// bf16 [outputs, depth], as weights are stored.
class BlasProducts final : public GpuProducts {
 public:
  explicit BlasProducts(std::unique_ptr<cuda::ExpertBlas> blas) : blas_(std::move(blas)) {}
  bool has_fixed_order() const override { return false; }
  bool is_capturable(bool is_batched) const override { return blas_->is_capturable(is_batched); }
  DType element() const override { return DType::kBF16; }
  std::size_t scratch_bytes(std::int64_t num_experts) const override {
    return blas_->scratch_bytes(num_experts);
  }
  std::size_t row_alignment() const override { return blas_->row_alignment(); }

  GpuMatrices upload(std::span<const WeightTensor> tensors, Device device) const override {
    GpuMatrices matrices;
    matrices.depth = tensors.front().values.shape(2);
    for (const WeightTensor& tensor : tensors) matrices.num_columns += tensor.values.shape(1);
    const std::int64_t elements = checked_mul(matrices.num_columns, matrices.depth);
    std::vector<float> row(static_cast<std::size_t>(matrices.depth));
    std::vector<std::uint16_t> matrix(static_cast<std::size_t>(elements));
    const auto fill = [&](std::int64_t e, const auto& upload_one) {
      std::uint16_t* to = matrix.data();
      for (const WeightTensor& tensor : tensors) {
        WeightReader reader(tensor);
        for (std::int64_t n = 0; n < tensor.values.shape(1); ++n, to += matrices.depth) {
          reader.read(e, n, row.data());
          f32_to_bf16(row.data(), matrices.depth, to);
        }
      }
      upload_one(matrix.data());
    };
    matrices.memory = upload_experts(tensors.front().values.shape(0),
                                     checked_mul(matrix.size(), sizeof(matrix[0])), device, fill);
    return matrices;
  }

  void begin(const cuda::RowRanges& ranges, std::byte* scratch, Stream stream) override {
    blas_->begin(ranges, scratch, stream);
  }
  void run(const cuda::ExpertProduct& product, Stream stream) override {
    const bool has_bias = product.bias != nullptr;
    if (has_bias) {
      cuda_module().fill_bias({product.ranges, product.bias, static_cast<std::uint16_t*>(product.y),
                               product.y_stride, product.num_outputs},
                              stream);
    }
    blas_->multiply(product, has_bias);
  }

 private:
  std::unique_ptr<cuda::ExpertBlas> blas_;
};

}  // namespace

std::unique_ptr<GpuProducts> make_exact_products() { return std::make_unique<ExactProducts>(); }

std::unique_ptr<GpuProducts> make_cublas_products(Device device) {
  return std::make_unique<BlasProducts>(
      cuda_module().make_cublas(device, setting("SWITCHYARD_CUBLAS").text));
}

std::unique_ptr<GpuProducts> make_cutlass_products(Device device) {
  return std::make_unique<BlasProducts>(cuda_module().make_cutlass(device));
}

}  // namespace switchyard
