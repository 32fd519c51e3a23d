// SPDX-License-Identifier: Apache-2.0
//
// grid.h: the grids of plan/push_grid.h as kernels are given them.
#pragma once

#include "cuda/exchange/exchange_args.h"

namespace switchyard::cuda {

/// For `num_tokens` of this rank.
DispatchGrid dispatch_grid(const GridRequest& request, const PushLayout& layout,
                           std::int32_t num_tokens);
DispatchGrid direct_dispatch_grid(const GridRequest& request, const DispatchArgs& args);
CombineGrid direct_combine_grid(const GridRequest& request, const PushLayout& layout,
                                std::int32_t num_tokens);
CombineGrid combine_grid(const GridRequest& request, const PushLayout& layout,
                         std::int32_t num_tokens);

}  // namespace switchyard::cuda
