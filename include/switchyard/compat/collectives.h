// SPDX-License-Identifier: Apache-2.0
//
// collectives.h: all-gather and reduce-scatter of rows, with any number of rows on each rank.
//
// Letters used for shapes in this header: P ranks, N rows of all ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "switchyard/export.h"
#include "switchyard/group.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// Mirrors all_gatherv and reduce_scatterv of vLLM's device communicators. Memory for each size of
/// row is taken at first use and kept.
///
/// All members are collective. `sizes` [P] are the rows of each rank, the same list on every rank;
/// 0 is a size. Empty: every rank has as many rows.
/// Errors: kInvalidArgument (shape, dtype, sizes); kTimeout, kPeerLost, kAborted.
///
/// A list that contradicts the rank's own rows is refused before anything is sent. One that
/// contradicts another rank's shows when rows have arrived: all_gatherv then throws
/// kInvalidArgument on the ranks whose list is wrong, the others have their result, and the group
/// goes on. reduce_scatterv also aborts the group, because the rows for the others are not known.
class SWITCHYARD_API Collectives {
 public:
  /// max_rows_per_rank: upper bound of every size, the same on every rank.
  Collectives(const Group& group, std::int64_t max_rows_per_rank);
  Collectives(Collectives&&) noexcept;
  Collectives& operator=(Collectives&&) noexcept;
  ~Collectives();

  /// [N, ...]: rows of all ranks, by rank.
  ///
  ///   x  [sizes[rank], ...]  any dtype, contiguous
  Tensor all_gatherv(const TensorView& x, std::span<const std::int64_t> sizes = {});

  /// Several tensors with as many rows, in one exchange; results in the same order.
  std::vector<Tensor> all_gatherv(const std::vector<TensorView>& tensors,
                                  std::span<const std::int64_t> sizes = {});

  /// [sizes[rank], ...]: this rank's rows, summed over ranks in f32 from +0, ranks ascending, and
  /// rounded once. NCCL sums bf16 in an order of its own.
  ///
  ///   x  [N, ...]  bf16, f16 or f32, contiguous
  Tensor reduce_scatterv(const TensorView& x, std::span<const std::int64_t> sizes = {});

 private:
  std::unique_ptr<class CollectivesImpl> impl_;
};

}  // namespace switchyard
