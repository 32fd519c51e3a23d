// SPDX-License-Identifier: Apache-2.0

#include "cuda/exchange/grid.h"

#include <algorithm>

#include "core/round_up.h"
#include "cuda/exchange/direct_args.h"

namespace switchyard::cuda {
namespace {

DispatchGrid with_divisors(const DispatchCtas& ctas, const PushLayout& layout,
                           std::int32_t num_tokens) {
  DispatchGrid grid;
  static_cast<DispatchCtas&>(grid) = ctas;
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

CombineGrid with_divisors(const CombineCtas& ctas, const PushLayout& layout) {
  CombineGrid grid;
  static_cast<CombineCtas&>(grid) = ctas;
  const int items = grid.items(layout);
  grid.by_items = FastDivisor(items);
  grid.by_slot = FastDivisor(std::int64_t{items} * layout.shape.num_ranks);
  return grid;
}

}  // namespace

DispatchGrid dispatch_grid(const GridRequest& request, const PushLayout& layout,
                           std::int32_t num_tokens) {
  return with_divisors(dispatch_ctas(request, layout, num_tokens), layout, num_tokens);
}

DispatchGrid direct_dispatch_grid(const GridRequest& request, const DispatchArgs& args) {
  const DirectChunks chunks = direct_chunks(args);
  DispatchGrid grid;
  static_cast<DispatchCtas&>(grid) =
      direct_dispatch_ctas(request, args.layout, args.tokens.count, chunks);
  grid.by_topk = FastDivisor(args.layout.shape.num_topk);
  grid.by_ranks = FastDivisor(args.layout.shape.num_ranks);
  grid.by_chunks = FastDivisor(cdiv(chunks.of_row, grid.chunks_per_item));
  return grid;
}

CombineGrid combine_grid(const GridRequest& request, const PushLayout& layout,
                         std::int32_t num_tokens) {
  return with_divisors(combine_ctas(request, layout, num_tokens), layout);
}

CombineGrid direct_combine_grid(const GridRequest& request, const PushLayout& layout,
                                std::int32_t num_tokens) {
  return with_divisors(direct_combine_ctas(request, layout, num_tokens), layout);
}

}  // namespace switchyard::cuda
