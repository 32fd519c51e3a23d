// SPDX-License-Identifier: Apache-2.0
//
// gpu_products.h: the two matrices of experts in the memory of a GPU, and rows times them: what
// tells one kind of experts on GPUs from another.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "switchyard/experts.h"
#include "switchyard/stream.h"
#include "switchyard/tensor.h"

#include "cpu/weights.h"
#include "cuda/experts/expert_kernels.h"

namespace switchyard {

/// Matrices of all experts, as one kind of products wants them. Tensors that follow one another in
/// a result take equal parts of its columns.
struct GpuMatrices {
  Tensor memory;
  DType dtype = DType::kBF16;
  std::int64_t depth = 0;
  std::int64_t num_columns = 0;  ///< with padding
};

/// Serves one thread at a time. Errors of all members: kSystem.
class GpuProducts {
 public:
  GpuProducts() = default;
  GpuProducts(const GpuProducts&) = delete;
  GpuProducts& operator=(const GpuProducts&) = delete;
  virtual ~GpuProducts() = default;

  virtual bool has_fixed_order() const = 0;  ///< a row's sums never depend on other rows
  virtual bool is_capturable(bool is_batched) const = 0;
  /// What rows that need widening or rounding become; bf16 rows are taken as they are.
  virtual DType element() const = 0;
  virtual std::size_t scratch_bytes(std::int64_t num_experts) const = 0;
  /// What addresses of rows and results, and the bytes from one row to the next, are multiples of.
  virtual std::size_t row_alignment() const { return 1; }

  /// Errors also: kOutOfMemory.
  virtual GpuMatrices upload(std::span<const WeightTensor> tensors, Device device) const = 0;

  /// `scratch` is aligned to 256 bytes.
  virtual void begin(const cuda::RowRanges& ranges, std::byte* scratch, Stream stream) = 0;
  /// y = x * w^T + bias. A bias is for a bf16 y.
  virtual void run(const cuda::ExpertProduct& product, Stream stream) = 0;
};

std::unique_ptr<GpuProducts> make_exact_products();
/// Errors: kNotAvailable: no cuBLAS.
std::unique_ptr<GpuProducts> make_cublas_products(Device device);
/// Errors: kNotAvailable: the GPU or the build cannot.
std::unique_ptr<GpuProducts> make_cutlass_products(Device device);

/// Experts around `products`, on a GPU. `function` begins messages. Errors: kInvalidArgument,
/// kOutOfMemory.
std::unique_ptr<Experts> make_gpu_experts(const char* function, std::string_view name,
                                          std::unique_ptr<GpuProducts> products,
                                          const ExpertWeights& weights,
                                          const ExpertOptions& options, Device device);

}  // namespace switchyard
