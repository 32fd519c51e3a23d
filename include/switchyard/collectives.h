// SPDX-License-Identifier: Apache-2.0
//
// collectives.h: all-gather and reduce-scatter of rows, with any number of rows per rank, on CPUs
// or on GPUs.
//
// Letters used for shapes in this header: P ranks, N rows of all ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "switchyard/exchange_types.h"
#include "switchyard/export.h"
#include "switchyard/group.h"
#include "switchyard/stream.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// Mirrors all_gatherv and reduce_scatterv of vLLM's device communicators. Memory for each row size
/// is allocated at first use and kept.
///
/// Every member is collective. `sizes` [P] holds the number of rows of each rank, 0 included, and
/// is the same on every rank; empty means that all ranks have the same number of rows.
/// Errors: kInvalidArgument (shape, dtype, sizes); kTimeout, kPeerLost, kAborted.
///
/// Tensors and streams are of the device in the ExchangeOptions. On a GPU calls are ordered in the
/// stream and wait for nothing once a call of these sizes has run; then they may be captured in a
/// CUDA graph. Results are memory of the object, which a later call may reuse when the last Tensor
/// that holds it is gone. Up to 32 ranks.
///
/// Sizes that contradict the rank's own rows are refused before anything is sent. Sizes that
/// contradict another rank's rows are detected when the rows have arrived: all_gatherv then throws
/// kInvalidArgument on the ranks with the wrong sizes, while the other ranks get their result and
/// the group stays usable. reduce_scatterv also aborts the group, because the rows for the other
/// ranks cannot be determined. On a GPU the host never learns how many rows arrived: there the
/// sizes of all ranks are believed, and results of wrong ones are undefined.
class SWITCHYARD_API Collectives {
 public:
  /// max_rows_per_rank: upper bound on every size, the same on every rank.
  Collectives(const Group& group, std::int64_t max_rows_per_rank,
              const ExchangeOptions& options = {});
  /// @{ Moves it; the other one is only destroyed or assigned to.
  Collectives(Collectives&&) noexcept;
  Collectives& operator=(Collectives&&) noexcept;
  /// @}
  ~Collectives();

  /// See Exchange::close. Later calls are kInvalidArgument.
  void close(bool waits_for_peers = true);

  /// [N, ...]: the rows of all ranks, in rank order.
  ///
  ///   x  [sizes[rank], ...]  any dtype, contiguous
  Tensor all_gatherv(const TensorView& x, Stream stream = Stream::host(),
                     std::span<const std::int64_t> sizes = {});

  /// Several tensors with the same number of rows, in one exchange; results are in the same order.
  std::vector<Tensor> all_gatherv(const std::vector<TensorView>& tensors,
                                  Stream stream = Stream::host(),
                                  std::span<const std::int64_t> sizes = {});

  /// [sizes[rank], ...]: this rank's rows, summed over the ranks in ascending order in f32 from +0,
  /// rounded once. NCCL sums bf16 in an order of its own.
  ///
  ///   x  [N, ...]  bf16, f16 or f32, contiguous
  Tensor reduce_scatterv(const TensorView& x, Stream stream = Stream::host(),
                         std::span<const std::int64_t> sizes = {});

 private:
  std::unique_ptr<class CollectivesImpl> impl_;
};

}  // namespace switchyard
