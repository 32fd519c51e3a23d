// SPDX-License-Identifier: Apache-2.0
//
// payload_exchange.h: dispatch of payloads of any dtype, and combine of rows, as two calls that
// need not have sizes in common: each brings the routing along, and places are the same because
// they follow from the routing alone.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "compat/kept_dispatch.h"

namespace switchyard {

/// What both calls share.
struct PayloadRouting {
  ExchangeConfig config;  ///< sizes of rows excepted
  TensorView topk_ids;    ///< [T, K]; absent when config.num_topk is 0
  std::int64_t num_tokens = 0;
  std::int64_t max_tokens = 0;  ///< of this call; 0: that of the configuration
};

struct ReceivedPayloads {
  std::unique_ptr<KeptDispatch> kept;  ///< views below are valid while it is
  Dispatched received;
};

/// Collective. Without payloads only the routing travels, and topk_weights where they are given.
///   payloads  [T, ...] each, contiguous
ReceivedPayloads dispatch_payloads(const char* function, ExchangePool& pool,
                                   const PayloadRouting& routing,
                                   const std::vector<TensorView>& payloads,
                                   const TensorView& topk_weights = {});

/// Collective. output [T, H] = sums of `rows` [N, H], both bf16, f16 or f32 alike.
///   rows_per_rank  [P] how many of the rows the caller takes for each rank's; empty: not said
/// Errors: kInvalidArgument; when the routing contradicts N or rows_per_rank the group is aborted.
void combine_rows(ExchangePool& pool, const PayloadRouting& routing, const TensorView& rows,
                  const TensorView& output, std::span<const std::int64_t> rows_per_rank = {});

/// Row `payload` number `index` of what was received, with the shape of a row of `like`:
/// [num_rows, ...], a copy of the first rows.
Tensor copy_payload(const Dispatched& received, std::size_t index, const TensorView& like);

}  // namespace switchyard
