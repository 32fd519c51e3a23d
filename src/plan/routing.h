// SPDX-License-Identifier: Apache-2.0
//
// routing.h: the routing table (every rank's topk ids) and what follows from it without any further
// message: what to send, what arrives, where each row lies, and the way back.
//
// Letters: P ranks, T tokens of a rank, K choices a token, L local experts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "switchyard/layout.h"

#include "plan/expert_ownership.h"

namespace switchyard {

/// Ids travel as 16 bits; this one means "no expert".
inline constexpr std::uint16_t kNoExpert = 0xFFFF;

/// One rank's part of the routing table. Views; the ids lie wherever that rank published them.
struct RankRouting {
  std::int64_t num_tokens = 0;
  const std::uint16_t* topk_ids = nullptr;  ///< [T, K]
  const float* topk_weights = nullptr;      ///< [T, K], or null when weights do not travel
};

/// A copy of an arrived token: the row it fills and which choice of the token it is.
struct Placement {
  std::int64_t row = 0;
  std::int32_t expert = 0;  ///< local index
  std::int32_t k = 0;
  float weight = 1.0f;  ///< 1 when weights do not travel
};

/// A token that has experts here: placements [first, first + count), k ascending.
struct Arrival {
  std::int32_t source = 0;
  std::int32_t token = 0;
  std::int32_t first = 0;
  std::int32_t count = 0;
};

struct ReceiveShape {
  Layout layout = Layout::kExpanded;
  std::int64_t alignment = 1;   ///< experts start at multiples of it (kExpanded)
  std::int64_t capacity = 0;    ///< rows of an expert (kBatched)
  std::int64_t max_tokens = 0;  ///< rows of a source (kByRank)
};

/// What one rank receives. Arrivals are ordered by (source, token), so that they can be walked as
/// they come; rows of an expert are ordered by (source, token, k).
///
/// kCompact and kByRank place a token once: row `arrival index`, or source * max_tokens + its place
/// among that source's arrivals; every placement of the token names that row.
struct ReceivePlan {
  std::vector<Arrival> arrivals;
  std::vector<Placement> placements;
  std::vector<std::int32_t> num_rows;       ///< [L] rows of each local expert
  std::vector<std::int64_t> first_row;      ///< [L] kBatched, kExpanded
  std::vector<std::int64_t> first_arrival;  ///< [P + 1] prefix sums of arrivals by source
  std::vector<std::int64_t> expert_load;    ///< [E] tokens of the whole group for each expert
  std::int64_t num_buffer_rows = 0;         ///< rows of the receive buffer in use, gaps included

  /// Rebuilds the plan in place; memory of earlier calls is reused. O(P T K).
  void build(int rank, const ExpertOwnership& ownership, int num_topk, const ReceiveShape& shape,
             std::span<const RankRouting> table);

 private:
  void place_each_choice(int first_expert, int num_topk, std::span<const RankRouting> table);
  void place_once(const ReceiveShape& shape);
  std::vector<std::int64_t> cursor_;  ///< next free row of each expert, while building
};

/// The most rows that a receive buffer of this shape can need.
std::int64_t max_buffer_rows(int rank, const ExpertOwnership& ownership, int num_topk,
                             const ReceiveShape& shape, std::int64_t max_tokens);

/// The ranks that one token concerns, in the order in which their partial rows are summed.
struct TokenRank {
  std::int32_t rank = 0;
  std::int32_t highest_k = 0;
};

/// What one rank sends, and to whom each of its tokens goes.
struct SendPlan {
  std::vector<std::vector<std::int32_t>> tokens_to;  ///< [P] tokens for each rank, ascending
  std::vector<TokenRank> ranks;                      ///< of all tokens, highest_k ascending
  std::vector<std::int64_t> first_rank;              ///< [T + 1] into ranks

  void build(const ExpertOwnership& ownership, int num_topk, const RankRouting& own);

  std::span<const TokenRank> ranks_of(std::int64_t token) const {
    const auto t = static_cast<std::size_t>(token);
    return {ranks.data() + first_rank[t],
            static_cast<std::size_t>(first_rank[t + 1] - first_rank[t])};
  }
};

}  // namespace switchyard
