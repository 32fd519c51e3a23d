// SPDX-License-Identifier: Apache-2.0
//
// run_oracle.h: compares a run with the reference implementation, which quantizes in the same way:
// received rows and their places bit for bit, and results from the tokens on, with bounded work.
// The routing is taken as given.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "run_rank.h"

namespace switchyard::cli {

/// What rank 0 has gathered of one rank.
struct RankTrace {
  Tensor topk_ids;                ///< [T, K] i32, of its tokens
  Tensor topk_weights;            ///< [T, K] f32
  std::vector<ReceivedRow> rows;  ///< of its experts
};

struct RunTrace {
  const RunOptions& options;
  const RankResult& result;  ///< of rank 0: configuration and sizes
  std::vector<RankTrace> ranks;
  std::vector<int> hosts;  ///< of each rank
  TensorView output;       ///< [T, H] of all ranks
};

struct OracleReport {
  std::string difference{};        ///< the first; empty: none
  std::int64_t num_rows = 0;       ///< received rows
  std::int64_t compared_rows = 0;  ///< those whose bytes were compared; all places were
  std::int64_t compared_tokens = 0;
  double rel_l2 = 0;       ///< of the compared results; 0: equal in every bit
  double bound = 0;        ///< what rel_l2 may be: 0 for exact experts
  std::string left_out{};  ///< why no result was compared

  bool is_ok() const { return difference.empty(); }
};

/// Errors: those of load_moe_layer and load_run_input.
OracleReport compare_with_oracle(const RunTrace& trace);

}  // namespace switchyard::cli
