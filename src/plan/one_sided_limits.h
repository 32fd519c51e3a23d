// SPDX-License-Identifier: Apache-2.0
//
// one_sided_limits.h: the shapes for which FlashInfer compiles its one-sided all-to-all
// (moe_alltoall). Ours accepts any shape; with `strict`, flashinfer::MoeAlltoAll and the
// PrepareFinalize recipe that mirrors it reject all others.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/fail.h"

namespace switchyard {

/// Errors: kInvalidArgument; the message begins with `caller`.
inline void check_one_sided_limits(const char* caller, std::int32_t num_topk, int num_ranks,
                                   std::int32_t num_experts) {
  constexpr std::array<std::int32_t, 11> kTopks{1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 22};
  constexpr int kMaxRanks = 64;
  require(std::find(kTopks.begin(), kTopks.end(), num_topk) != kTopks.end() &&
              num_ranks <= kMaxRanks && num_experts >= num_ranks,
          Errc::kInvalidArgument,
          "{}: top-{}, {} ranks, {} experts; strict wants top-1, top-22 or an even number up to "
          "18, at most {} ranks and an expert for each",
          caller, num_topk, num_ranks, num_experts, kMaxRanks);
}

}  // namespace switchyard
