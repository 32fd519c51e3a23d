// SPDX-License-Identifier: Apache-2.0
//
// bench_shape.h: everything that one line of a measurement is made of.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "switchyard/exchange_config.h"

#include "measure/routing_pattern.h"
#include "measure/workload.h"

namespace switchyard::measure {

enum class Operation : std::uint8_t {
  kDispatch,
  kCombine,
  kPair,   ///< dispatch, then combine of what arrived
  kLayer,  ///< prepare, experts with random weights, finalize
};

const char* name_of(Operation operation) noexcept;
std::optional<Operation> operation_from_name(std::string_view name) noexcept;

/// The same on every rank.
struct BenchShape {
  Workload workload;
  RoutingPattern routing;
  int num_ranks = 1;
  std::int64_t num_tokens = 1;  ///< T, of each rank
  std::int64_t max_tokens = 0;  ///< that the exchange has room for, of a rank; 0: num_tokens
  Operation operation = Operation::kPair;
  Layout layout = Layout::kExpanded;  ///< any but kAllGather
  QuantScheme scheme = schemes::kNone;
  Reduce reduce = Reduce::kPerRank;
  int num_layers = 1;            ///< operations in a row that make one iteration
  std::int64_t num_runs = 51;    ///< timed iterations
  bool uses_graph = false;       ///< device: replayed graphs instead of launches between events
  bool is_programmatic = false;  ///< device: kernels launched before the one ahead has ended
  int num_sms = 0;               ///< device: budget of an operation; 0: by heuristics
  std::uint64_t seed = 1;

  std::int64_t max_tokens_per_rank() const { return max_tokens == 0 ? num_tokens : max_tokens; }
  ExchangeConfig exchange_config() const;
};

/// The scale of the whole tensor that `scheme` needs, fit for the values of BenchBatch; 1 for
/// schemes that need none.
float tensor_scale_of(const QuantScheme& scheme) noexcept;

/// True when dispatch wants that scale from its caller.
bool wants_tensor_scale(const QuantScheme& scheme) noexcept;

/// Errors: kInvalidArgument, kNotSupported: fields that do not go together.
void check_shape(const BenchShape& shape);

}  // namespace switchyard::measure
