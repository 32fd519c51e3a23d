// SPDX-License-Identifier: Apache-2.0
//
// one_sided_limits.h: the shapes that FlashInfer's one-sided all-to-all is compiled for
// (moe_alltoall). Ours takes any; `strict` refuses the others, in the view and in the class.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "core/fail.h"

namespace switchyard {

/// Errors: kInvalidArgument. `caller` opens the message.
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
