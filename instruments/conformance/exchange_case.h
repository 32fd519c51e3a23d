// SPDX-License-Identifier: Apache-2.0
//
// exchange_case.h: one configuration of an exchange and what travels through it, and the list of
// those that are tried: every two values of two factors meet in some case.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "switchyard/exchange.h"

#include "conformance/random_batch.h"

namespace switchyard::conformance {

struct ExchangeCase {
  int num_ranks = 2;
  BatchShape shape;              ///< num_topk 0: all-gather and reduce-scatter
  std::int64_t num_tokens = 23;  ///< of all ranks; split unevenly, some ranks get none
  Layout layout = Layout::kExpanded;
  QuantScheme scheme = schemes::kNone;
  ScaleLayout scale_layout = ScaleLayout::kRowMajor;
  Reduce reduce = Reduce::kPerExpert;
  QuantScheme combine_scheme = schemes::kNone;
  bool sends_weights = true;   ///< kPerExpert: false keeps them here, or gives them to combine
  bool lacks_weights = false;  ///< ranks of odd number give none
  std::int64_t alignment = 1;
  bool worst_case_rows = false;
  bool zero_padding = false;
  std::int64_t capacity = 0;  ///< with Overflow::kDrop
  std::vector<std::int64_t> payload_bytes{};
  DType input = DType::kBF16;       ///< of tokens
  bool is_quantized_input = false;  ///< tokens come as codes and scales
  DType results = DType::kBF16;     ///< of what experts return
  DType output = DType::kBF16;
  int num_bias = 0;
  bool returns_weights = false;
  bool limits_calls = false;     ///< each dispatch states its own max_tokens
  bool is_long = true;           ///< six rounds, else one
  bool keeps_routing = true;     ///< some rounds take an earlier routing: again, or reopened
  bool forgets_routing = false;  ///< when another dispatch takes the place of a handle
  Overflow overflow = Overflow::kDrop;
  std::int32_t max_in_flight = 1;
  bool has_uneven_experts = false;  ///< some ranks hold none, others many
  std::uint64_t seed = 1;

  ExchangeConfig config() const;
  /// [P], or empty.
  std::vector<std::int32_t> experts_per_rank() const;
  std::string describe() const;

  bool has_weights(int rank) const { return !lacks_weights || rank % 2 == 0; }
  /// Weights that the owner needs and that dispatch did not get.
  bool gives_weights_to_combine() const {
    return reduce == Reduce::kPerExpert && !sends_weights && seed % 2 == 0;
  }
};

/// For each pair of factors every pair of values that may go together, small and odd sizes.
/// Sorted by number of ranks.
std::vector<ExchangeCase> exchange_cases(const std::vector<int>& rank_counts);

/// Any of these values together, with sizes at random.
ExchangeCase random_exchange_case(std::uint64_t seed, const std::vector<int>& rank_counts);

/// Every layout with every contract, for two handles at once.
std::vector<ExchangeCase> two_in_flight_cases(int num_ranks);

}  // namespace switchyard::conformance
