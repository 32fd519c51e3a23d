// SPDX-License-Identifier: Apache-2.0
//
// Weights of rows that a combine returns, in a region of their own at the end of the slot.

#include "exchange/check_returns.h"
#include "exchange/push/push_exchange.h"

namespace switchyard {

void PushExchange::set_weights_base(Slot& slot) const {
  const ExchangeConfig& config = shape_.config;
  ReturnWeightsArgs& args = slot.weights;
  args.slots = shape_.weights;
  args.ownership = KernelOwnership(shape_.exchange.ownership);
  args.state = slot.dispatch.state;
  args.watch = watch_;
  args.rank = group_.rank();
  args.num_topk = config.num_topk;
  args.num_columns = shape_.main_topk;
  args.max_tokens = static_cast<std::int32_t>(config.max_tokens_per_rank);
  args.row_ids = shape_.gathers ? slot.routing_args.row_ids : nullptr;
  args.weighs_rows = is_expert_major(config.layout);
  args.windows = slot.dispatch.windows;
  const std::size_t region = shape_.window_bytes - shape_.weights.total_bytes;
  for (int r = 0; r < group_.size(); ++r) args.windows.base[r] += region;
}

void PushExchange::set_row_weights(Slot& slot, const CombineOptions& options) const {
  check_row_weights(shape_.config, buffer_rows(slot), options.row_weights);
  slot.weights.row_weights =
      options.row_weights.has_value() ? options.row_weights.as<float>() : nullptr;
}

void PushExchange::set_returned_weights(Slot& slot, const CombineOptions& options) const {
  check_returned_weights(shape_.config, slot.num_tokens, options.returned_weights);
  slot.weights.returned =
      options.returned_weights.has_value() ? options.returned_weights.as<std::uint32_t>() : nullptr;
}

}  // namespace switchyard
