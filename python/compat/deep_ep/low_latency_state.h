// SPDX-License-Identifier: Apache-2.0
//
// low_latency_state.h: what a low-latency handle holds between its dispatch and its last combine,
// and how it is filled: with views of where rows will lie before they arrive, with what is computed
// from them afterwards.
#pragma once

#include <memory>

#include "compat/deep_ep/low_latency_buffer.h"
#include "exchange/pool/kept_dispatch.h"

namespace switchyard::deep_ep {

struct LowLatencyState {
  LowLatencyState(std::shared_ptr<Exchange> exchange, const TensorPool& pool)
      : kept(std::move(exchange)), results(pool) {}

  KeptDispatch kept;
  TensorPool results;
  LowLatencyDispatchOptions options;
  LowLatencyRows rows;
  bool is_received = false;
  bool is_returned = false;  ///< its rows, once at least
  Tensor topk_idx;           ///< [T, K] i64; on CPUs
  std::int64_t num_tokens = 0;
  Tensor recv_count;  ///< [L] i32; on CPUs, where that of the exchange is not fixed
  Tensor recv_src_rank;
  Tensor combine_rows;  ///< for get_next_low_latency_combine_buffer, made on demand
};

/// Memory of the tensors that name each row's source.
void make_sources(LowLatencyHandle& handle, const LowLatencyDispatchOptions& options,
                  const TensorView& rows, int num_ranks);

/// Views of where rows will lie, and memory of what is computed from them: all before they arrive.
void place(LowLatencyHandle& handle, const Dispatched& places, int num_ranks);

/// `options`: of the dispatch, or those that are wanted now.
void write_sources(LowLatencyHandle& handle, const LowLatencyDispatchOptions& options,
                   Stream stream);

/// What follows from the rows that have been received.
void receive(LowLatencyHandle& handle, const Dispatched& received, Stream stream);

}  // namespace switchyard::deep_ep
