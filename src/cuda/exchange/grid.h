// SPDX-License-Identifier: Apache-2.0
//
// grid.h: how many CTAs of a kernel get each role. Tuned values live here and nowhere else.
#pragma once

#include "cuda/exchange/exchange_args.h"

namespace switchyard::cuda {

/// What a grid depends on.
struct GridRequest {
  int max_ctas = 1;  ///< of 512 threads, or twice as many of 256
  bool sends = true;
  bool receives = true;
  /// No other kernel needs room beside this one, so CTAs may be of either size. (Where sizes mix,
  /// the free room may be enough in total but too little on every single SM.)
  bool has_whole_gpu = false;
  /// Max tokens of any rank in this call; 0: unknown.
  std::int64_t call_max_tokens = 0;
  bool may_stream = false;  ///< combine: can_stream()
};

/// For `num_tokens` of this rank.
DispatchGrid dispatch_grid(const GridRequest& request, const PushLayout& layout,
                           std::int32_t num_tokens);
CombineGrid combine_grid(const GridRequest& request, const PushLayout& layout,
                         std::int32_t num_tokens);

}  // namespace switchyard::cuda
