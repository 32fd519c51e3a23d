// SPDX-License-Identifier: Apache-2.0
//
// bench_oracle.h: counts the elements of one rank's iteration that are wrong. Places come from the
// plain loops of reference/ and values from the functions of BenchBatch, so no measured code takes
// part. Everything is in host memory; a device target copies its tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "switchyard/tensor.h"

#include "measure/bench_batch.h"
#include "reference/reference.h"

namespace switchyard::measure {

/// Maps a received, dequantized row [H] of a (global) expert to [H] values that bf16 represents
/// exactly.
using ExpertFunction =
    std::function<void(std::int32_t expert, std::span<const float> in, std::span<float> out)>;

/// Maps a token [H] to the row [H] of the shared expert, values that bf16 represents exactly.
using SharedFunction = std::function<void(std::span<const float> in, std::span<float> out)>;

/// Cheap, and different for neighboring experts: x * (1 + 0.37 (expert mod 7)), rounded to bf16.
void scale_by_expert(std::int32_t expert, std::span<const float> in, std::span<float> out);

class BenchOracle {
 public:
  BenchOracle(const BenchShape& shape, std::int64_t iteration, int rank,
              ExpertFunction experts = scale_by_expert, SharedFunction shared = {});

  /// Counts the elements that differ, bit by bit, from what must have arrived. Rows are
  /// contiguous [N, ...], scales lie as the shape says; scales are absent where the scheme has none
  /// and [1] for per-tensor schemes. `num_rows`: [L] rows per expert.
  std::int64_t count_wrong_received(const TensorView& rows, const TensorView& scales,
                                    std::span<const std::int32_t> num_rows) const;

  /// Returns what the experts return for a receive buffer of `num_buffer_rows` rows, [N, H] bf16:
  /// one row per received row; in token-major layouts the weighted sum over this rank's experts.
  Tensor results(std::int64_t num_buffer_rows) const;

  /// Counts the elements of `output`, [T, H] bf16, whose bits differ from the expected ones, in
  /// `max_tokens` tokens from the first to the last; 0: in all. With a tolerance, those that are
  /// further from the expected ones than this part of the token's largest.
  std::int64_t count_wrong_output(const TensorView& output, std::int64_t max_tokens = 0,
                                  float tolerance = 0) const;

 private:
  class Rows;
  void place();
  Tensor row_major_scales(const TensorView& rows, const TensorView& scales) const;
  void add_partial(const Rows& rows, int source, std::int64_t token, std::int32_t first,
                   std::int32_t last, std::span<float> sum) const;
  void expected_output(const Rows& rows, std::int64_t token, std::span<float> sum) const;
  void add_choices(const Rows& rows, std::int64_t token, std::span<float> sum) const;
  void pass_wire(std::span<float> row) const;
  void add_shared(const Rows& rows, std::span<float> sum) const;
  const std::int32_t* ids_of(int source, std::int64_t token) const;

  BenchShape shape_;
  std::int64_t iteration_;
  int rank_;
  ExpertFunction experts_;
  SharedFunction shared_;                       ///< may be empty
  reference::Batch batch_;                      ///< ids and weights of all ranks; no token values
  std::vector<reference::Position> positions_;  ///< of this rank, by (source, token)
  std::vector<std::int64_t> counts_;            ///< [L] rows per expert
};

}  // namespace switchyard::measure
