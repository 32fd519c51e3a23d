// SPDX-License-Identifier: Apache-2.0
//
// expert_blas.h: products of experts' bf16 rows on tensor cores, by cuBLAS or CUTLASS.
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

  /// Of work over a batch (ranges.first_row is null), or over rows that follow expert by expert. If
  /// false, begin() waits for the stream, because the host needs the counts.
  virtual bool is_capturable(bool is_batched) const = 0;
  virtual std::size_t scratch_bytes(std::int64_t num_experts) const = 0;
  /// What addresses of x and y, and the bytes from one of their rows to the next, are multiples of.
  virtual std::size_t row_alignment() const = 0;

  /// Directs the work that follows to `stream`. `scratch`, aligned to 256 bytes, is in use until
  /// that work has completed.
  virtual void begin(const RowRanges& ranges, std::byte* scratch, Stream stream) = 0;

  /// y = x * w^T, or y += x * w^T if `adds`. x and weights [experts][num_outputs][depth] are bf16,
  /// y is bf16 or f32; bias and num_columns are ignored. Rows of a batch that are not counted may
  /// be computed or not. Errors also: kNotSupported: sides that the library cannot take.
  virtual void multiply(const ExpertProduct& product, bool adds) = 0;
};

/// By cuBLAS of this path, or empty (cuda/cublas_api.h). Errors: kNotAvailable, kSystem.
std::unique_ptr<ExpertBlas> make_cublas(Device device, const std::string& path);
/// By CUTLASS. Errors: kNotAvailable: a GPU of another compute capability than 9.0, a build without
/// CUTLASS; kSystem.
std::unique_ptr<ExpertBlas> make_cutlass(Device device);

}  // namespace switchyard::cuda
