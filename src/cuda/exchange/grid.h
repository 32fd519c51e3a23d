// SPDX-License-Identifier: Apache-2.0
//
// grid.h: how many CTAs of a kernel do what. Measured choices live here and nowhere else.
#pragma once

#include "cuda/exchange/exchange_args.h"

namespace switchyard::cuda {

/// What decides a grid.
struct GridRequest {
  int max_ctas = 1;  ///< of 512 threads, or twice as many of 256
  bool sends = true;
  bool receives = true;
  /// No other kernel must find room beside it, so CTAs may be of either size: where sizes mix, what
  /// is free in sum may be too little for any one.
  bool has_whole_gpu = false;
  /// The most tokens that a rank has in this call; 0: not known.
  std::int64_t call_max_tokens = 0;
};

/// For `num_tokens` of this rank.
DispatchGrid dispatch_grid(const GridRequest& request, const PushLayout& layout,
                           std::int32_t num_tokens);
CombineGrid combine_grid(const GridRequest& request, const PushLayout& layout,
                         std::int32_t num_tokens);

}  // namespace switchyard::cuda
