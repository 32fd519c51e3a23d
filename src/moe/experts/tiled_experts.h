// SPDX-License-Identifier: Apache-2.0
//
// tiled_experts.h: an expert MLP around any pair of GEMMs. Rows are processed in tiles, so that
// scratch does not grow with the batch: widened to f32, multiplied, activated, rounded and
// multiplied again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "switchyard/experts.h"

#include "moe/experts/expert_checks.h"
#include "moe/experts/expert_input.h"

namespace switchyard {

/// y = x * w^T with one matrix per expert; input and output are f32. Not thread-safe.
class ExpertGemm {
 public:
  ExpertGemm() = default;
  ExpertGemm(const ExpertGemm&) = delete;
  ExpertGemm& operator=(const ExpertGemm&) = delete;
  virtual ~ExpertGemm() = default;

  /// Floats per row of the result.
  virtual std::int64_t num_columns() const = 0;
  virtual std::size_t scratch_bytes(std::int64_t num_rows) const = 0;

  /// x [num_rows, depth], contiguous; y [num_rows, num_columns()]; scratch is 64-byte aligned.
  virtual void run(std::int64_t expert, const float* x, std::int64_t num_rows, float* y,
                   std::byte* scratch) = 0;
};

/// What distinguishes one kind of experts from another.
struct ExpertKind {
  const char* name;
  const char* function;        ///< for messages
  bool has_fixed_order;        ///< a row's sums never depend on other rows
  std::int64_t max_tile_rows;  ///< maximum rows per call of ExpertGemm::run
  /// Makes the GEMM of one or more matrices whose results are adjacent columns: gate and up
  /// together, each with half of the columns, and down alone.
  std::function<std::unique_ptr<ExpertGemm>(std::span<const WeightTensor>)> make_gemm;
};

/// Errors: kInvalidArgument, and those of make_gemm.
std::unique_ptr<Experts> make_tiled_experts(const ExpertKind& kind, const ExpertWeights& weights,
                                            const ExpertOptions& options);

}  // namespace switchyard
