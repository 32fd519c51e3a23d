// SPDX-License-Identifier: Apache-2.0
//
// collectives.h: all-gather and reduce-scatter of rows, with any number of rows per rank.
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

/// Mirrors all_gatherv and reduce_scatterv of vLLM's device communicators. Memory for each row size
/// is allocated at first use and kept.
///
/// Every member is collective. `sizes` [P] holds the number of rows of each rank, 0 included, and
/// is the same on every rank; empty means that all ranks have the same number of rows.
/// Errors: kInvalidArgument (shape, dtype, sizes); kTimeout, kPeerLost, kAborted.
///
/// Sizes that contradict the rank's own rows are refused before anything is sent. Sizes that
/// contradict another rank's rows are detected when the rows have arrived: all_gatherv then throws
/// kInvalidArgument on the ranks with the wrong sizes, while the other ranks get their result and
/// the group stays usable. reduce_scatterv also aborts the group, because the rows for the other
/// ranks cannot be determined.
class SWITCHYARD_API Collectives {
 public:
  /// max_rows_per_rank: upper bound on every size, the same on every rank.
  Collectives(const Group& group, std::int64_t max_rows_per_rank);
  Collectives(Collectives&&) noexcept;
  Collectives& operator=(Collectives&&) noexcept;
  ~Collectives();

  /// [N, ...]: the rows of all ranks, in rank order.
  ///
  ///   x  [sizes[rank], ...]  any dtype, contiguous
  Tensor all_gatherv(const TensorView& x, std::span<const std::int64_t> sizes = {});

  /// Several tensors with the same number of rows, in one exchange; results are in the same order.
  std::vector<Tensor> all_gatherv(const std::vector<TensorView>& tensors,
                                  std::span<const std::int64_t> sizes = {});

  /// [sizes[rank], ...]: this rank's rows, summed over the ranks in ascending order in f32 from +0,
  /// rounded once. NCCL sums bf16 in an order of its own.
  ///
  ///   x  [N, ...]  bf16, f16 or f32, contiguous
  Tensor reduce_scatterv(const TensorView& x, std::span<const std::int64_t> sizes = {});

 private:
  std::unique_ptr<class CollectivesImpl> impl_;
};

}  // namespace switchyard
