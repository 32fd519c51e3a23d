// SPDX-License-Identifier: Apache-2.0
//
// eplb.h: expert-parallel load balancing: which experts have several copies, which copy serves a
// token, and how loaded each copy is.
//
// A logical expert belongs to the model; a physical expert is a copy of one in a slot of a rank.
// Physical experts are numbered in rank order; they are the experts of Exchange.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "switchyard/export.h"
#include "switchyard/tensor.h"

namespace switchyard {

/// The initial mapping, [num_logical + num_redundant]: the logical expert of each physical one.
/// Each logical expert comes once, then the redundant copies: copy i is of logical expert
/// i mod num_logical.
///
/// Errors: kInvalidArgument when num_logical is below 1, num_redundant is below 0, or both together
/// exceed 65535.
/// Source: vLLM's EPLB.
SWITCHYARD_API std::vector<std::int32_t> initial_physical_to_logical(std::int32_t num_logical,
                                                                     std::int32_t num_redundant);

/// Where the copies of each logical expert are.
struct LogicalMaps {
  std::int32_t num_logical = 0;   ///< logical experts
  std::int32_t max_replicas = 0;  ///< copies of the most replicated expert
  std::vector<std::int32_t>
      logical_to_physical;                   ///< [num_logical, max_replicas] ascending, then -1
  std::vector<std::int32_t> replica_counts;  ///< [num_logical] at least 1
};

/// The inverse of a physical-to-logical map, in which -1 marks an empty slot.
///
/// Errors: kInvalidArgument (an id that is neither -1 nor from 0 to num_logical - 1, a logical
/// expert without a copy, more than 65535 experts of either kind).
/// Source: vLLM's compute_logical_maps.
SWITCHYARD_API LogicalMaps compute_logical_maps(std::span<const std::int32_t> physical_to_logical,
                                                std::int32_t num_logical);

/// Which of `num_replicas` (at least 1) copies serves token row `token`: Knuth's multiplicative
/// hash, ((token * 2654435769) mod 2^32) mod num_replicas, as in vLLM.
constexpr std::int32_t choose_replica(std::int64_t token, std::int32_t num_replicas) {
  const std::uint32_t hash = static_cast<std::uint32_t>(token) * 2654435769u;
  return static_cast<std::int32_t>(hash % static_cast<std::uint32_t>(num_replicas));
}

/// Replaces each logical id by the physical id of the copy that serves its token. Negative ids are
/// kept.
///
///   topk_ids  [T, K]  i32 or i64, contiguous
///   out       [T, K]  i32 or i64, contiguous; written; may be `topk_ids` itself
///
/// Errors: kInvalidArgument (shapes, dtypes, an id of num_logical or more); nothing is written
/// then.
SWITCHYARD_API void map_logical_to_physical(const TensorView& topk_ids, const LogicalMaps& maps,
                                            const TensorView& out);

/// What balance_experts places, and where.
struct BalanceConfig {
  std::int32_t num_physical = 0;  ///< logical and redundant experts; a multiple of num_ranks
  std::int32_t num_ranks = 1;     ///< a multiple of num_hosts; consecutive ranks share a host
  std::int32_t num_hosts = 1;     ///< must divide num_ranks
  /// Expert groups of the router, of equally many experts each. If they divide evenly among the
  /// hosts, all copies of an expert stay on the host of its group (hierarchical), which keeps the
  /// tokens of a router with topk_group on few hosts; else they go anywhere (global).
  std::int32_t num_groups = 1;
};

/// A placement for the next window: [num_physical] the logical expert of each physical one, in rank
/// order, as for compute_logical_maps. A pure function: equal arguments give equal placements.
///
///   logical_load  rows per logical expert, for example ExpertLoad::logical_load
///
/// Redundant copies go one by one to the expert with the most rows per copy. Groups are packed onto
/// hosts, and then copies onto ranks, heaviest first, each onto the lightest that has room. The
/// first of equals wins. Two copies of an expert may share a rank.
///
/// Errors: kInvalidArgument (no load or a negative one; counts below 1 or above 65535 experts;
/// fewer physical than logical experts; a count that does not divide evenly). Source: DeepSeek's
/// EPLB (rebalance_experts), which vLLM's default policy follows.
SWITCHYARD_API std::vector<std::int32_t> balance_experts(std::span<const std::int64_t> logical_load,
                                                         const BalanceConfig& config);

/// How evenly a placement spreads a load over ranks: the mean load of a rank divided by the
/// largest, from 1 / num_ranks to 1; 1 without load. The rows of an expert are split evenly among
/// its copies.
///
/// Errors: kInvalidArgument (num_ranks below 1 or not a divisor of the number of physical experts;
/// a negative load; an id out of range; a logical expert with load but without a copy).
SWITCHYARD_API double load_balance(std::span<const std::int64_t> logical_load,
                                   std::span<const std::int32_t> physical_to_logical,
                                   std::int32_t num_ranks);

/// Rows per physical expert, summed over the most recent steps. Not thread-safe.
/// Mirrors the expert load window of vLLM's EPLB.
class SWITCHYARD_API ExpertLoad {
 public:
  static constexpr std::int32_t kDefaultWindow = 1000;  ///< steps, as in vLLM

  /// Reserves 8 * num_physical * (window + 1) bytes; the system backs the pages as steps are added.
  ///
  /// Errors: kInvalidArgument when num_physical is not from 1 to 65535 or window is below 1;
  /// kOutOfMemory.
  explicit ExpertLoad(std::int32_t num_physical, std::int32_t window = kDefaultWindow);

  /// Adds a step given as counts, for example Dispatched::expert_load, the load of the whole group.
  ///
  /// Errors: kInvalidArgument (a wrong number of counts, a negative count, a sum above 2^63 - 1);
  /// nothing is added then.
  void add_step(std::span<const std::int64_t> expert_load);

  /// Adds a step given as chosen experts: +1 for each id in the first num_tokens rows; the rows
  /// after them are padding. Negative ids count nothing. This is the load of one rank: add it up
  /// over the ranks for that of the group.
  ///
  ///   physical_ids  [T, K]  i32 or i64, contiguous
  ///
  /// Errors: kInvalidArgument (shape, dtype, num_tokens not from 0 to T, an id of num_physical or
  /// more); nothing is added then.
  void add_step(const TensorView& physical_ids, std::int64_t num_tokens);

  /// Steps that the sums cover, at most the window.
  std::int64_t num_steps() const { return num_steps_; }

  /// [num_physical] sums over these steps.
  std::span<const std::int64_t> physical_load() const { return sums_; }

  /// [num_logical] the same, with the copies of each logical expert added up; empty slots (-1)
  /// count nothing.
  ///
  /// Errors: kInvalidArgument (a wrong number of physical experts, an id out of range).
  std::vector<std::int64_t> logical_load(std::span<const std::int32_t> physical_to_logical,
                                         std::int32_t num_logical) const;

  void reset();  ///< forgets all steps

 private:
  std::int64_t window_;
  std::int64_t num_steps_ = 0;
  std::int64_t next_ = 0;            ///< index of the next step in the ring
  std::vector<std::int64_t> sums_;   ///< [num_physical]
  std::vector<std::int64_t> steps_;  ///< [steps so far, at most window_, num_physical]
};

}  // namespace switchyard
