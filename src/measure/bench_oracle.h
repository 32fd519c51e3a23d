// SPDX-License-Identifier: Apache-2.0
//
// bench_oracle.h: what one rank must see in one iteration, and how many elements are not so. Places
// come from the plain loops of reference/, values from BenchBatch's functions: nothing that is
// measured has a part in it. All in host memory; a device target copies its tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "switchyard/tensor.h"

#include "measure/bench_batch.h"
#include "reference/reference.h"

namespace switchyard::measure {

/// Row of a (global) expert: [H] as received, dequantized, to [H] that bf16 holds exactly.
using ExpertFunction =
    std::function<void(std::int32_t expert, std::span<const float> in, std::span<float> out)>;

/// Cheap, and different for neighbouring experts: x * (1 + 0.37 (expert mod 7)), rounded.
void scale_by_expert(std::int32_t expert, std::span<const float> in, std::span<float> out);

class BenchOracle {
 public:
  BenchOracle(const BenchShape& shape, std::int64_t iteration, int rank,
              ExpertFunction experts = scale_by_expert);

  /// Rows and scales as they must have arrived, bit by bit: [N, ...] contiguous each, scales
  /// row-major; absent where the scheme has none, [1] for one a tensor. `num_rows`: [L] rows of
  /// each expert.
  std::int64_t count_wrong_received(const TensorView& rows, const TensorView& scales,
                                    std::span<const std::int32_t> num_rows) const;

  /// What experts return for a receive buffer of `num_buffer_rows` rows, [N, H] bf16: a row for
  /// each received row; in layouts with a row a token the weighted sum over this rank's experts.
  Tensor results(std::int64_t num_buffer_rows) const;

  /// Elements of `output`, [T, H] bf16, with other bits than they must have. Only the first
  /// `max_tokens` tokens are looked at; 0: all.
  std::int64_t count_wrong_output(const TensorView& output, std::int64_t max_tokens = 0) const;

 private:
  class Rows;
  void place();
  void add_partial(const Rows& rows, int source, std::int64_t token, std::int32_t first,
                   std::int32_t last, std::span<float> sum) const;
  void expected_output(const Rows& rows, std::int64_t token, std::span<float> sum) const;
  const std::int32_t* ids_of(int source, std::int64_t token) const;

  BenchShape shape_;
  std::int64_t iteration_;
  int rank_;
  ExpertFunction experts_;
  reference::Batch batch_;                      ///< ids and weights of all ranks, no elements
  std::vector<reference::Position> positions_;  ///< of this rank, by (source, token)
  std::vector<std::int64_t> counts_;            ///< [L]
};

}  // namespace switchyard::measure
