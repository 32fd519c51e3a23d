// SPDX-License-Identifier: Apache-2.0
//
// crossing.h: what crosses between GPUs of different hosts, as messages of fixed size: M tokens of
// each rank, however many it has and wherever they go. So no host needs to know counts, and a graph
// captures the messages with the kernels.
//
//   of dispatch  the mode of the call, ids [M, K], weights [M, K], and of each region
//                (push_shape.h) rows [M] in wire form and their scales [M, S]; the same for every
//                host
//   of combine   rows [M, W] that the ranks of one host return, in the order of the token's partial
//                sums; then records of weights
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda/exchange/exchange_args.h"
#include "exchange/push/push_shape.h"

namespace switchyard {

/// Offsets of a region's rows.
struct CrossingRows {
  std::size_t rows = 0;
  std::int64_t stride = 0;  ///< bytes
  std::size_t scales = 0;
  bool has_scales = false;
};

struct DispatchMessage {
  std::size_t mode = 0;  ///< of its sender, at the same place in every message
  std::size_t ids = 0;
  std::size_t weights = 0;
  std::vector<CrossingRows> regions;
  std::size_t num_bytes = 0;
};

/// `regions`: as they are dispatched, the last one with the ids.
DispatchMessage dispatch_message(const std::vector<cuda::DispatchArgs>& regions,
                                 std::int64_t max_tokens);

struct ReturnMessage {
  std::int32_t width = 0;  ///< W
  std::size_t weights = 0;
  std::int64_t num_records = 0;
  std::size_t num_bytes = 0;
};

/// Of a host with `host_size` ranks.
ReturnMessage return_message(const PushExchangeShape& shape, int host_size,
                             std::int64_t max_tokens);

/// Of the part of a forwarder's window where ranks of its host return rows for one source: what a
/// window has from the returned rows on, and slots of weights.
struct ReturnPart {
  std::size_t weights = 0;
  std::size_t num_bytes = 0;
};
ReturnPart return_part(const PushExchangeShape& shape);

}  // namespace switchyard
