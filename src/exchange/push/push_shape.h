// SPDX-License-Identifier: Apache-2.0
//
// push_shape.h: what a configuration means for an exchange between GPUs: what is not supported, and
// the regions of an in-flight slot in the window.
//
// A region serves one push of rows (plan/push_layout.h) by a kernel of its own: the tokens, each
// payload, and the routing of all ranks where it is needed before rows are placed. In kAllGather,
// and for the routing, each rank acts as one expert that every token chooses: received rows are
// ordered by (source, token) and partial sums by rank, with the kernels of kCompact.
#pragma once

#include <cstdint>
#include <vector>

#include "exchange/exchange_shape.h"
#include "plan/direct_layout.h"
#include "plan/push_layout.h"
#include "plan/weight_slots.h"

namespace switchyard {

struct PushExchangeShape {
  ExchangeConfig config;  ///< with worst_case_rows: sizes are the largest until rows are counted
  ExchangeShape exchange;
  bool gathers = false;          ///< kAllGather
  bool drops = false;            ///< Overflow::kDrop, with a capacity
  bool gathers_routing = false;  ///< ids and weights go to every rank: kAllGather, kDrop
  std::int32_t main_topk = 1;  ///< choices and, below, experts as row and payload kernels see them
  ExpertOwnership main_ownership;
  PushLayout main;
  std::vector<PushLayout> payloads;
  PushLayout routing;            ///< rows of K ids (i32) and K weights (f32)
  bool returns_weights = false;  ///< weights travel, so a combine may return them
  WeightSlots weights;
  /// Per in-flight slot: main, payloads, routing and weights, one after another.
  std::size_t window_bytes = 0;
  DirectLayout direct;  ///< behind them, where the exchange can send rows directly

  bool can_be_direct() const { return direct.end > 0; }
  std::size_t all_window_bytes() const { return can_be_direct() ? direct.end : window_bytes; }
  std::int64_t routing_row_bytes() const { return std::int64_t{8} * config.num_topk; }
  /// N, the rows of the receive buffer in a call.
  std::int64_t buffer_rows(int rank, std::int64_t max_tokens) const;
};

/// Whether an exchange must be one that kernels can run, or is only planned: for any number of
/// ranks.
enum class RankLimit : std::uint8_t { kOfKernels, kNone };

/// Errors: kInvalidArgument, kNotSupported.
PushExchangeShape make_push_exchange_shape(const ExchangeConfig& config, int num_ranks, int rank,
                                           RankLimit limit = RankLimit::kOfKernels);

}  // namespace switchyard
