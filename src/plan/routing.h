// SPDX-License-Identifier: Apache-2.0
//
// routing.h: the routing table (every rank's topk ids) and what follows from it without any further
// message: what to send, what arrives, where each row is placed, and the way back.
//
// Letters: P ranks, T tokens of a rank, K choices per token, E experts, L local experts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "switchyard/layout.h"

#include "plan/expert_ownership.h"

namespace switchyard {

/// Ids travel as 16 bits; this one means "no expert".
inline constexpr std::uint16_t kNoExpert = 0xFFFF;

/// One rank's part of the routing table: views of the memory where that rank published it. It has
/// an entry for each token, or only for those that want an expert of this rank; then the counts say
/// what the others want.
struct RankRouting {
  std::int64_t num_tokens = 0;
  const std::uint16_t* topk_ids = nullptr;  ///< [entries, K]
  const float* topk_weights = nullptr;      ///< [entries, K], or null when weights do not travel
  bool is_list = false;                     ///< entries are those of `tokens`
  std::int64_t num_listed = 0;
  const std::int32_t* tokens = nullptr;          ///< [num_listed], ascending
  const std::uint32_t* expert_counts = nullptr;  ///< [E] choices of all its tokens

  std::int64_t num_entries() const { return is_list ? num_listed : num_tokens; }
  /// The entry of a token that arrives as number `number` of its source.
  std::int64_t entry(std::size_t number, std::int64_t token) const {
    return is_list ? static_cast<std::int64_t>(number) : token;
  }
};

/// One choice of an arrived token that names a local expert.
struct Placement {
  std::int64_t row = 0;     ///< the row it fills; with one row per token, the token's
  std::int32_t expert = 0;  ///< local index
  std::int32_t k = 0;
};

/// A token that arrives at this rank. Its placements are [first, first + count), k ascending.
struct Arrival {
  std::int64_t row = 0;  ///< of the token, in layouts with one row per token
  std::int32_t source = 0;
  std::int32_t token = 0;
  std::int32_t first = 0;
  std::int32_t count = 0;  ///< 0 only with kAllGather
};

struct ReceiveShape {
  Layout layout = Layout::kExpanded;
  std::int64_t alignment = 1;   ///< first rows of experts are multiples of it (kExpanded)
  std::int64_t capacity = 0;    ///< rows per expert; 0: unlimited (not with kBatched)
  std::int64_t max_tokens = 0;  ///< upper bound on the tokens of a rank
  bool is_worst_case = false;   ///< num_buffer_rows is the upper bound, max_buffer_rows()
};

/// What one rank receives. Arrivals are ordered by (source, token), so that they can be walked as
/// they come in; rows of an expert are ordered by (source, token, k). Layouts with one row per
/// token place it at its arrival index, or, for kByRank, at source * max_tokens + its index among
/// that source's arrivals.
struct ReceivePlan {
  std::vector<Arrival> arrivals;
  std::vector<Placement> placements;
  std::vector<std::int32_t> num_rows;       ///< [L] rows of each local expert
  std::vector<std::int64_t> first_row;      ///< [L]; empty in layouts with one row per token
  std::vector<std::int64_t> first_arrival;  ///< [P + 1] prefix sums of arrivals by source
  std::vector<std::int64_t> expert_load;    ///< [E] rows of each expert, over the whole group
  std::int64_t num_buffer_rows = 0;         ///< rows of the receive buffer in use, gaps included

  /// Rebuilds the plan in place, reusing memory of earlier calls. O(P T K).
  void build(int rank, const ExpertOwnership& ownership, int num_topk, const ReceiveShape& shape,
             std::span<const RankRouting> table);

 private:
  void place_choices(int first_expert, int num_topk, bool takes_every_token,
                     std::span<const RankRouting> table);
  void place_tokens(const ReceiveShape& shape);
  std::vector<std::int64_t> cursor_;  ///< next free row of each expert, while building
};

/// Upper bound on the rows that a receive buffer of this shape can need. Errors: kInvalidArgument
/// when it overflows.
std::int64_t max_buffer_rows(int rank, const ExpertOwnership& ownership, int num_topk,
                             const ReceiveShape& shape);

/// A rank that serves a token: it holds an expert of the token, or a slice of every expert, or
/// there is no routing. The ranks of a token are listed in the order in which their partial sums
/// are added.
struct TokenRank {
  std::int32_t rank = 0;
  std::int32_t highest_k = 0;  ///< -1 without routing, and where experts are sliced
};

/// Which ranks serve each token of one rank.
struct SendPlan {
  std::vector<TokenRank> ranks;             ///< of all tokens, token by token
  std::vector<std::int64_t> first_rank;     ///< [T + 1] offsets into `ranks`
  std::vector<std::int64_t> num_tokens_to;  ///< [P] tokens that each rank serves

  /// Orders the ranks of a token by the highest k that they hold, or by rank for kAllGather.
  void build(const ExpertOwnership& ownership, int num_topk, Layout layout, const RankRouting& own);

  std::span<const TokenRank> ranks_of(std::int64_t token) const {
    const auto t = static_cast<std::size_t>(token);
    return {ranks.data() + first_rank[t],
            static_cast<std::size_t>(first_rank[t + 1] - first_rank[t])};
  }
};

}  // namespace switchyard
