// SPDX-License-Identifier: Apache-2.0
//
// bench_shape.h: everything that defines one line of a measurement.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/exchange_config.h"

#include "core/enum_names.h"
#include "measure/routing_pattern.h"
#include "measure/workload.h"

namespace switchyard::measure {

enum class Operation : std::uint8_t {
  kDispatch,
  kCombine,
  kPair,   ///< dispatch, then combine of the dispatched rows
  kLayer,  ///< prepare, experts with random weights, finalize
};

}  // namespace switchyard::measure

template <>
inline constexpr auto switchyard::kEnumTable<switchyard::measure::Operation> =
    switchyard::enum_table("op", "dispatch", "combine", "pair", "layer");

namespace switchyard::measure {

inline const char* name_of(Operation operation) noexcept { return enum_name(operation); }

/// The same on every rank.
struct BenchShape {
  Workload workload;
  RoutingPattern routing;
  int num_ranks = 1;
  std::vector<int> hosts{};     ///< number of each rank's host; empty: they share one
  std::int64_t num_tokens = 1;  ///< T, per rank
  std::int64_t max_tokens = 0;  ///< per rank, for which the exchange has room; 0: num_tokens
  Operation operation = Operation::kPair;
  Layout layout = Layout::kExpanded;  ///< any except kAllGather
  QuantScheme scheme = schemes::kNone;
  QuantScheme returned = schemes::kNone;              ///< of rows on the way back
  ScaleLayout scale_layout = ScaleLayout::kRowMajor;  ///< of received scales
  bool gives_codes = false;  ///< tokens are quantized before they are dispatched
  Reduce reduce = Reduce::kPerRank;
  std::string experts = "exact";  ///< layer: the kind, as in make_experts
  int num_micro_batches = 1;      ///< layer: parts of each rank's tokens that run overlapped
  int num_shared_experts = 0;     ///< layer: of the size of one routed expert, as one expert
  int num_layers = 1;             ///< consecutive operations that make up one iteration
  std::int64_t num_runs = 51;     ///< timed iterations
  bool uses_graph = false;  ///< device: replays graphs instead of timing launches between events
  bool is_programmatic = true;  ///< device: programmatic dependent launch
  int num_sms = 0;              ///< device: SM budget of an operation; 0: chosen by heuristics
  bool has_cold_code = false;   ///< device: also with other code and traffic between calls
  bool has_skew = false;        ///< device: also with ranks that are late at random
  bool has_stages = false;      ///< device: also where the time of kernels goes
  // Device, ranks of several hosts: as in ExchangeOptions.
  bool has_exact_messages = false;
  std::int64_t host_capacity = 0;
  std::uint64_t seed = 1;

  std::int64_t max_tokens_per_rank() const { return max_tokens == 0 ? num_tokens : max_tokens; }
  ExchangeConfig exchange_config() const;
  int num_hosts() const;
};

/// Returns the per-tensor scale that `scheme` needs for the values of BenchBatch; 1 for schemes
/// that need none.
float tensor_scale_of(const QuantScheme& scheme) noexcept;

/// True when the caller of dispatch must pass that scale.
bool wants_tensor_scale(const QuantScheme& scheme) noexcept;

/// Errors: kInvalidArgument, kNotSupported: fields that do not go together.
void check_shape(const BenchShape& shape);

}  // namespace switchyard::measure
