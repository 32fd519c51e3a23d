// SPDX-License-Identifier: Apache-2.0
//
// exchange_suite.h: what every engine must do, against the oracle, bit for bit. An engine's test
// file only chooses how ranks are started.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "switchyard/exchange.h"

#include "support/random_batch.h"

namespace switchyard::test {

struct ExchangeCase {
  int num_ranks = 2;
  BatchShape shape;
  std::int64_t num_tokens = 23;  ///< of all ranks; split unevenly, some ranks get none
  Layout layout = Layout::kExpanded;
  QuantScheme scheme = schemes::kNone;
  Reduce reduce = Reduce::kPerExpert;
  bool sends_weights = true;  ///< kPerExpert: false gives the weights to combine
  std::int64_t alignment = 1;
  DType output = DType::kBF16;
  int num_bias = 0;
  int num_rounds = 3;
  std::uint64_t seed = 1;

  std::string describe() const;
};

/// Up to three dispatch + combine rounds on one rank, with other tokens each time: blocking, split,
/// and blocking with i64 ids. Throws a std::runtime_error that says what differs.
void check_exchange(const Group& group, const ExchangeCase& test);

/// Two handles alive at once, combined in the other order; and one handle too many.
void check_two_in_flight(const Group& group, const ExchangeCase& test);

/// Every factor meets every other: small sizes, odd ones among them.
std::vector<ExchangeCase> exchange_cases(std::vector<int> rank_counts);

}  // namespace switchyard::test
