// SPDX-License-Identifier: Apache-2.0

#include "cuda/exchange/grid.h"

#include <algorithm>

namespace switchyard::cuda {

DispatchGrid dispatch_grid(const GridRequest& request, const PushLayout& layout,
                           std::int32_t num_tokens) {
  DispatchGrid grid;
  static_cast<DispatchCtas&>(grid) = dispatch_ctas(request, layout, num_tokens);
  const int ranks = layout.shape.num_ranks;
  const int items = grid.items(layout);
  const int received_items = grid.received_items(layout);
  grid.by_topk = FastDivisor(layout.shape.num_topk);
  grid.by_ranks = FastDivisor(ranks);
  grid.by_chunks = FastDivisor(items);
  grid.by_shares = FastDivisor(std::int64_t{std::max(1, num_tokens)} * items);
  grid.by_items = FastDivisor(received_items);
  grid.by_slot = FastDivisor(std::int64_t{received_items} * ranks);
  return grid;
}

CombineGrid combine_grid(const GridRequest& request, const PushLayout& layout,
                         std::int32_t num_tokens) {
  CombineGrid grid;
  static_cast<CombineCtas&>(grid) = combine_ctas(request, layout, num_tokens);
  const int items = grid.items(layout);
  grid.by_items = FastDivisor(items);
  grid.by_slot = FastDivisor(std::int64_t{items} * layout.shape.num_ranks);
  return grid;
}

}  // namespace switchyard::cuda
