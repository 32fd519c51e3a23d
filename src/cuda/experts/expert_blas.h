// SPDX-License-Identifier: Apache-2.0
//
// expert_blas.h: products of experts' bf16 rows by a library of matrix routines.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "switchyard/stream.h"

#include "cuda/experts/expert_kernels.h"

namespace switchyard::cuda {

/// Of one GPU, the one that was current when it was made. Serves one thread at a time. Errors of
/// all members: kSystem.
class ExpertBlas {
 public:
  ExpertBlas() = default;
  ExpertBlas(const ExpertBlas&) = delete;
  ExpertBlas& operator=(const ExpertBlas&) = delete;
  virtual ~ExpertBlas() = default;

  virtual std::size_t scratch_bytes(std::int64_t num_experts) const = 0;

  /// Work from here on goes to `stream`; `scratch`, aligned to 256 bytes, is the library's until
  /// that has passed. Rows that are no batch (ranges.first_row is there) need their counts on the
  /// host: waits for the stream.
  virtual void begin(const RowRanges& ranges, std::byte* scratch, Stream stream) = 0;

  /// y = x * w^T, or y += for `adds`. x and weights [experts][num_outputs][depth] are bf16, y is
  /// bf16 or f32; bias and num_columns are not looked at. All rows of a batch are computed, counted
  /// or not.
  virtual void multiply(const ExpertProduct& product, bool adds) = 0;
};

/// By cuBLAS of this path, or empty (cuda/cublas_api.h). Errors: kNotAvailable, kSystem.
std::unique_ptr<ExpertBlas> make_cublas(const std::string& path);

}  // namespace switchyard::cuda
