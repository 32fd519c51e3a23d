// SPDX-License-Identifier: Apache-2.0
//
// push_shape.h: what follows from a configuration for an exchange between GPUs: what it refuses,
// and the regions of a slot in the window.
//
// A region is one push of rows (plan/push_layout.h) with a kernel of its own: the tokens, each
// further payload, and the routing of all ranks where it is needed before rows are placed. In
// kAllGather, and for the routing, each rank is one expert that every token chooses: the rows of
// that dispatch lie by (source, token), and its sums go by rank, with the kernels of kCompact.
#pragma once

#include <vector>

#include "exchange/exchange_shape.h"
#include "plan/push_layout.h"
#include "plan/weight_slots.h"

namespace switchyard {

struct PushExchangeShape {
  ExchangeConfig config;  ///< with worst_case_rows: the host never learns how many rows came
  ExchangeShape exchange;
  bool gathers = false;          ///< kAllGather
  bool drops = false;            ///< Overflow::kDrop, with a capacity
  bool gathers_routing = false;  ///< ids and weights go to every rank: kAllGather, kDrop
  std::int32_t main_topk = 1;    ///< choices and experts of the kernels for rows and payloads
  ExpertOwnership main_ownership;
  PushLayout main;
  std::vector<PushLayout> payloads;
  PushLayout routing;            ///< rows of K ids (i32) and K weights (f32)
  bool returns_weights = false;  ///< where weights travel, they may go home too
  WeightSlots weights;
  /// Of a slot: main, payloads, routing, weights, one after the other.
  std::size_t window_bytes = 0;

  std::int64_t routing_row_bytes() const { return std::int64_t{8} * config.num_topk; }
  /// N of a call.
  std::int64_t buffer_rows(int rank, std::int64_t max_tokens) const;
};

/// Errors: kInvalidArgument, kNotSupported.
PushExchangeShape make_push_exchange_shape(const ExchangeConfig& config, int num_ranks, int rank);

}  // namespace switchyard
