// SPDX-License-Identifier: Apache-2.0
//
// forecast.h: what an exchange and a layer cost on so many hosts: a simulation of one call, and for
// each layout and contract its times and its memory; the best of them, and why.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "forecast/exchange_time.h"
#include "forecast/layer_time.h"
#include "forecast/memory_use.h"
#include "forecast/simulation.h"

namespace switchyard::forecast {

struct Question {
  Machine machine;
  HostsShape shape;  ///< micro-batches included; ranks and hosts are set for each forecast
  int ranks_per_host = 8;
  std::int32_t num_redundant = -1;  ///< -1: as few as give every rank equally many experts
  bool is_balanced = false;
  ExpertCosts experts;
  double max_memory_bytes = 0;  ///< of the exchange on a rank; 0: any
};

/// One way to configure the exchange.
struct Choice {
  Layout layout = Layout::kBatched;
  Reduce reduce = Reduce::kPerRank;
  std::string backend;
  bool is_timed = true;  ///< times of backend messages are not known
  ExchangeTime time;
  double layer_us = 0;
  MemoryUse memory;
  std::string why_not;  ///< it is not possible; empty: it is
};

/// Bytes of one call on the links of all ranks.
struct CallBytes {
  double inside = 0;          ///< inside hosts, over all ranks
  double across = 0;          ///< between hosts
  double busiest_inside = 0;  ///< of a rank's link, in its busier direction
  double busiest_across = 0;

  void add(const LinkBytes& rank);
};

struct Forecast {
  int num_hosts = 1;
  int num_ranks = 1;
  std::int32_t num_physical = 0;
  double balance = 1;
  double ranks_per_token = 0;      ///< that a token travels to, its own included
  double crossings_per_token = 0;  ///< to other hosts
  double experts_us = 0;
  std::vector<Choice> choices;
  int best = -1;  ///< of choices; -1: none is possible
  /// Where none is possible because there are too many ranks: the best without that limit; else -1.
  int best_without_limit = -1;
  std::string why;  ///< of the best; or why none is possible
  /// The choice that stands for all: the best, also without that limit; where there is none the one
  /// that takes the least memory, or, if none can be made, the fastest; -1: there is no time of
  /// any.
  int shown = -1;
  // Of the shown choice.
  const char* dispatch_path = "";
  const char* combine_path = "";
  CallBytes dispatch;
  CallBytes combine;
};

/// Errors: kInvalidArgument (hosts, experts, copies), and those of a trace.
Forecast forecast(const Question& question, int num_hosts);

}  // namespace switchyard::forecast
