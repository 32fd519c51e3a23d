// SPDX-License-Identifier: Apache-2.0
//
// Weights of rows that go home with a combine, in a region of their own at the end of a channel's.

#include "exchange/check_returns.h"
#include "exchange/push/push_exchange.h"

namespace switchyard {

void P2pExchange::set_weights_base(Channel& channel) const {
  const ExchangeConfig& config = shape_.config;
  ReturnWeightsArgs& args = channel.weights;
  args.slots = shape_.weights;
  args.ownership = KernelOwnership(shape_.exchange.ownership);
  args.state = channel.dispatch.state;
  args.watch = watch_;
  args.rank = group_.rank();
  args.num_topk = config.num_topk;
  args.num_columns = shape_.main_topk;
  args.max_tokens = static_cast<std::int32_t>(config.max_tokens_per_rank);
  args.row_ids = shape_.gathers ? channel.routing_args.row_ids : nullptr;
  args.weighs_rows = is_expert_major(config.layout);
  args.windows = channel.dispatch.windows;
  const std::size_t region = shape_.window_bytes - shape_.weights.total_bytes;
  for (int r = 0; r < group_.size(); ++r) args.windows.base[r] += region;
}

void P2pExchange::set_row_weights(Channel& channel, const DeviceCombineOptions& options) const {
  check_row_weights(shape_.config, buffer_rows(channel), options.row_weights);
  channel.weights.row_weights =
      options.row_weights.has_value() ? options.row_weights.as<float>() : nullptr;
}

void P2pExchange::set_returned_weights(Channel& channel,
                                       const DeviceCombineOptions& options) const {
  check_returned_weights(shape_.config, channel.num_tokens, options.returned_weights);
  channel.weights.returned =
      options.returned_weights.has_value() ? options.returned_weights.as<std::uint32_t>() : nullptr;
}

}  // namespace switchyard
