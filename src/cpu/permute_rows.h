// SPDX-License-Identifier: Apache-2.0
//
// permute_rows.h: moves rows and scales to the places that a permute plan assigns.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "switchyard/tensor.h"

#include "plan/row_views.h"

namespace switchyard {

/// The destinations of each token's row: inv_perm [T, K], contiguous; negative for none.
struct Destinations {
  const std::int32_t* inv_perm = nullptr;
  std::int64_t num_topk = 0;

  std::span<const std::int32_t> of(std::int64_t t) const {
    return {inv_perm + t * num_topk, static_cast<std::size_t>(num_topk)};
  }
};

/// Copies each row of `from` to its destinations, reading it once.
void scatter_rows(const ByteRows& from, const Destinations& destinations, const ByteRows& to);

/// Moves scales [T, S] to [M, S], or packs e8m0 into [M, cdiv(S, 4)]; see check_row_move.
class ScaleScatter {
 public:
  ScaleScatter(const TensorView& from, const TensorView& to) : from_(from), to_(to) {}

  /// Writes every row of the output; rows that receive no token become 0.
  void run(const Destinations& destinations) const;

 private:
  template <typename Word>
  void scatter(const std::vector<std::int64_t>& token_of_row) const;
  template <typename Word>
  void scatter_columns(const std::vector<std::int64_t>& token_of_row) const;
  template <typename Word>
  void collect(std::int64_t token, Word* words, std::int64_t step) const;

  TensorView from_;
  TensorView to_;
};

}  // namespace switchyard
