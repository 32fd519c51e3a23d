// SPDX-License-Identifier: Apache-2.0
//
// device_products.h: the two matrices of experts in the memory of a GPU, and rows times them: what
// tells one kind of experts on GPUs from another.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "switchyard/stream.h"

#include "cpu/weights.h"
#include "cuda/experts/expert_kernels.h"
#include "device/device_queue.h"

namespace switchyard {

/// Matrices of all experts, as one kind of products wants them. Tensors that follow one another in
/// a result take equal parts of its columns.
struct DeviceMatrices {
  DeviceMemory memory;
  DType dtype = DType::kBF16;
  std::int64_t depth = 0;
  std::int64_t num_columns = 0;  ///< with padding
};

/// Serves one thread at a time. Errors of all members: kSystem.
class DeviceProducts {
 public:
  DeviceProducts() = default;
  DeviceProducts(const DeviceProducts&) = delete;
  DeviceProducts& operator=(const DeviceProducts&) = delete;
  virtual ~DeviceProducts() = default;

  virtual bool has_fixed_order() const = 0;  ///< a row's sums never depend on other rows
  virtual bool is_capturable(bool is_batched) const = 0;
  /// What rows that need widening or rounding become; bf16 rows are taken as they are.
  virtual DType element() const = 0;
  virtual std::size_t scratch_bytes(std::int64_t num_experts) const = 0;

  /// Errors also: kOutOfMemory.
  virtual DeviceMatrices upload(std::span<const WeightTensor> tensors,
                                DeviceQueue& queue) const = 0;

  /// `scratch` is aligned to 256 bytes.
  virtual void begin(const cuda::RowRanges& ranges, std::byte* scratch, Stream stream) = 0;
  /// y = x * w^T + bias. A bias is for a bf16 y.
  virtual void run(const cuda::ExpertProduct& product, Stream stream) = 0;
};

std::unique_ptr<DeviceProducts> make_exact_products();
/// Errors: kNotAvailable: no cuBLAS.
std::unique_ptr<DeviceProducts> make_blas_products();

}  // namespace switchyard
