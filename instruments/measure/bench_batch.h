// SPDX-License-Identifier: Apache-2.0
//
// bench_batch.h: the inputs of one iteration. Every value is a function of seed, iteration, rank
// and place, so a rank can verify what it received from another without communication.
#pragma once

#include <cstdint>
#include <vector>

#include "switchyard/exchange.h"
#include "switchyard/tensor.h"

#include "measure/bench_shape.h"

namespace switchyard::measure {

/// bf16 elements of one rank: magnitudes from 2^-7 to 2, both signs. Rows repeat after 65521 rows.
class TokenValues {
 public:
  TokenValues(std::int64_t hidden, int rank);
  void copy_row(std::int64_t row, std::uint16_t* to) const;

 private:
  std::int64_t hidden_;
  std::vector<std::uint16_t> values_;
};

/// Iterations use different rows of a buffer that is larger than a batch, so that caches do not
/// keep them. Returns the first row of an iteration's tokens.
std::int64_t first_row_of(std::int64_t iteration);

/// [T, K], values from 1/16 to 1.
std::vector<float> topk_weights_of(const BenchShape& shape, std::int64_t iteration, int rank);

/// One rank's inputs in host memory; a device target copies them.
class BenchBatch {
 public:
  BenchBatch(const BenchShape& shape, int rank);

  /// Moves to another iteration: new ids and weights, other rows.
  void make(std::int64_t iteration);

  TensorView tokens() const;                 ///< [T, H] bf16, or the scheme's codes
  TensorView topk_ids() const;               ///< [T, K] i32
  TensorView topk_weights() const;           ///< [T, K] f32
  DispatchOptions dispatch_options() const;  ///< with the scales that dispatch needs

 private:
  void quantize_tokens();

  BenchShape shape_;
  int rank_;
  Tensor all_tokens_;
  Tensor all_scales_;  ///< of codes with scales in each row
  std::int64_t first_row_ = 0;
  float tensor_scale_;
  std::vector<std::int32_t> ids_;
  std::vector<float> weights_;
};

}  // namespace switchyard::measure
