// SPDX-License-Identifier: Apache-2.0
//
// expert_blas.h: products of experts' bf16 rows, computed by a BLAS library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "switchyard/stream.h"

#include "cuda/experts/expert_kernels.h"

namespace switchyard::cuda {

/// Bound to the GPU that is current at construction. Serves one thread at a time. Errors of all
/// members: kSystem.
class ExpertBlas {
 public:
  ExpertBlas() = default;
  ExpertBlas(const ExpertBlas&) = delete;
  ExpertBlas& operator=(const ExpertBlas&) = delete;
  virtual ~ExpertBlas() = default;

  virtual std::size_t scratch_bytes(std::int64_t num_experts) const = 0;

  /// Directs the work that follows to `stream`. `scratch`, aligned to 256 bytes, is in use until
  /// that work has completed. Unless rows are a batch (ranges.first_row is null), their counts are
  /// needed on the host, and the call waits for the stream.
  virtual void begin(const RowRanges& ranges, std::byte* scratch, Stream stream) = 0;

  /// y = x * w^T, or y += x * w^T if `adds`. x and weights [experts][num_outputs][depth] are bf16,
  /// y is bf16 or f32; bias and num_columns are ignored. All rows of a batch are computed, counted
  /// or not.
  virtual void multiply(const ExpertProduct& product, bool adds) = 0;
};

/// By cuBLAS of this path, or empty (cuda/cublas_api.h). Errors: kNotAvailable, kSystem.
std::unique_ptr<ExpertBlas> make_cublas(Device device, const std::string& path);

}  // namespace switchyard::cuda
