// SPDX-License-Identifier: Apache-2.0
//
// stress_lane.h: the stream and the memory of one handle in flight.
#pragma once

#include "switchyard/exchange.h"

#include "cuda/base/memory.h"
#include "stress_kernels.h"

namespace switchyard::test {

struct StressLane {
  StressLane(const StressShape& shape, std::int64_t max_rows);

  /// Keeps what a dispatch returned.
  void receive(const Dispatched& dispatched);

  cuda::OwnedStream own_stream;
  cudaStream_t stream = own_stream.get();
  cuda::DeviceBuffer tokens, scales, ids, weights, payload;
  cuda::DeviceBuffer output, returned, results, row_weights;
  cuda::DeviceBuffer rows, counts, first_row;
  StressInput input;
  StressPlan plan;
  StressStep step;
  StressTurn turn = StressTurn::kPair;  ///< of this step
  bool has_routing = false;             ///< that dispatch_again can use
  Dispatched got;
  StressReceived received;
};

}  // namespace switchyard::test
