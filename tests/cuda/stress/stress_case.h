// SPDX-License-Identifier: Apache-2.0
//
// stress_case.h: the kinds of exchange that a stress run tests.
#pragma once

#include <string>
#include <vector>

#include "switchyard/exchange.h"

#include "stress_rule.h"

namespace switchyard::test {

struct StressCase {
  std::string name;
  StressShape shape;
  Reduce reduce = Reduce::kPerRank;
  bool uses_graph = false;
  bool is_cold = false;  ///< sweeps the L2 cache before each dispatch and combine
  bool splits_phases = false;
  bool programmatic = false;
  int num_lanes = 1;   ///< handles in flight, 1 or 2; each has a stream unless ranks share a GPU
  int num_ctas = 0;    ///< of ExchangeOptions; 0: as many as fit
  double share = 1.0;  ///< relative share of the time
};

/// `is_small`: few tokens and short rows, for tools that slow kernels down.
std::vector<StressCase> stress_cases(int num_ranks, std::uint32_t seed, bool is_small);

ExchangeConfig config_of(const StressCase& c);

}  // namespace switchyard::test
