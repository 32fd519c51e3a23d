// SPDX-License-Identifier: Apache-2.0
//
// payload_exchange.h: dispatch of payloads of any dtype and combine of rows, as two calls that need
// not share sizes: each sends the routing, and the places are equal because they follow from the
// routing alone.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "exchange/pool/kept_dispatch.h"

namespace switchyard {

/// What both calls share.
struct PayloadRouting {
  ExchangeConfig config;  ///< everything but the sizes of rows
  TensorView topk_ids;    ///< [T, K]; absent when config.num_topk is 0
  std::int64_t num_tokens = 0;
  std::int64_t max_tokens = 0;  ///< of this call; 0: the configured maximum
};

struct ReceivedPayloads {
  std::unique_ptr<KeptDispatch> kept;  ///< keeps the views below valid
  Dispatched received;
};

/// Dispatches the payloads; without payloads only the routing travels, with topk_weights if given.
/// Collective.
///   payloads  [T, ...] each, contiguous
ReceivedPayloads dispatch_payloads(const char* function, ExchangePool& pool,
                                   const PayloadRouting& routing,
                                   const std::vector<TensorView>& payloads, Stream stream,
                                   const TensorView& topk_weights = {});

/// output [T, H] = sums of `rows` [N, H], both of the same dtype, bf16, f16 or f32. Collective.
///   rows_per_rank  [P] how many of `rows` the caller expects to belong to each rank; empty: any.
///                  On a GPU it is believed: `rows` has as many, N is the largest number
/// Errors: kInvalidArgument; when the routing contradicts N or rows_per_rank, the group is aborted
/// first.
void combine_rows(ExchangePool& pool, const PayloadRouting& routing, const TensorView& rows,
                  const TensorView& output, Stream stream,
                  std::span<const std::int64_t> rows_per_rank = {});

/// A copy of the first `num_rows` rows of received payload `index`, with the dtype and row shape of
/// `like`. Below 0: of the whole buffer, where rows that no rank sent are 0.
Tensor copy_payload(const TensorPool& pool, const Dispatched& received, std::size_t index,
                    const TensorView& like, Stream stream, std::int64_t num_rows = -1);

}  // namespace switchyard
