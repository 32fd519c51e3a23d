// SPDX-License-Identifier: Apache-2.0
//
// permute_rows.h: moves rows and scales to the rows of a permute plan. Messages start with
// `function`; errors are kInvalidArgument.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "switchyard/tensor.h"

namespace switchyard {

/// Rows [N, H] whose bytes lie side by side.
struct ByteRows {
  std::byte* data = nullptr;
  std::int64_t num_rows = 0;
  std::size_t row_bytes = 0;
  std::int64_t stride_bytes = 0;

  std::byte* row(std::int64_t n) const { return data + n * stride_bytes; }
};

/// Refuses rows with gaps, rows that are no whole bytes and, for an output, rows that overlap.
ByteRows byte_rows(const char* function, const char* name, const TensorView& tensor,
                   bool is_output);

/// Where rows go: inv_perm [T, K] contiguous, negative for none.
struct Destinations {
  const std::int32_t* inv_perm = nullptr;
  std::int64_t num_topk = 0;

  std::span<const std::int32_t> of(std::int64_t t) const {
    return {inv_perm + t * num_topk, static_cast<std::size_t>(num_topk)};
  }
};

/// Copies each row of `from` to its destinations. A row is read once.
void scatter_rows(const ByteRows& from, const Destinations& destinations, const ByteRows& to);

/// Scales [T, S] to [M, S], or e8m0 packed into [M, cdiv(S, 4)]; checked, ready to move.
class ScaleScatter {
 public:
  ScaleScatter(const char* function, const TensorView& from, const TensorView& to);

  /// Writes every row of the output; rows that no token goes to become 0.
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

/// Whether e8m0 or u8 scales become four to an i32.
inline bool packs_scales(const TensorView& from, DType to) {
  return (from.dtype() == DType::kE8M0 || from.dtype() == DType::kU8) && to == DType::kI32;
}

}  // namespace switchyard
