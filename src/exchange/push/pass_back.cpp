// SPDX-License-Identifier: Apache-2.0
//
// Rows that return: those of forwarded tokens are collected from this rank's window and sent to the
// tokens' owners, and what other hosts return for own tokens is put into the window.

#include <algorithm>
#include <optional>

#include "cuda/base/check.h"
#include "cuda/exchange/grid.h"
#include "exchange/push/push_hosts.h"

namespace switchyard {
namespace {

// Messages of hosts with more ranks may have more blocks.
std::optional<RowBlock> nth_block(const ReturnMessage& message, std::size_t nth) {
  const std::vector<RowBlock> blocks = message.blocks();
  return nth < blocks.size() ? std::optional(blocks[nth]) : std::nullopt;
}

}  // namespace

// What the ranks of this host return for some tokens becomes one sum of each, ranks ascending,
// rounded once, in the slot of the first of its partial sums.
void PushHosts::add_up(const Slot& slot, const SlotKernels& kernels, const cuda::CallState& lists,
                       std::int64_t num_tokens, std::byte* window, const GridRequest& grid,
                       cudaStream_t stream) const {
  const auto count = static_cast<std::int32_t>(num_tokens);
  const std::int64_t row_bytes = shape_.config.hidden * static_cast<std::int64_t>(sizeof(float));
  const bool are_aligned = row_bytes % static_cast<std::int64_t>(kUnitBytes) == 0;
  cuda::ListGroupsArgs groups{
      .from = lists, .to = slot.of_ranks, .num_topk = shape_.main_topk, .num_tokens = count};
  for (const int rank : map_.ranks_of(own_host())) {
    groups.groups[groups.num_groups++] = std::uint64_t{1} << rank;
  }
  cuda::launch_list_groups(groups, stream);
  cuda::CombineArgs args = combine_args(kernels, {});
  args.windows.base[rank_] = window;
  args.state = slot.of_ranks;
  args.state.counter = kernels.main.base.state.counter;
  args.sums.num_tokens = count;
  args.sums.data = slot.sums;
  args.sums.stride = row_bytes;
  args.sums.dtype = DType::kF32;
  args.sums.are_aligned = are_aligned;
  args.grid = cuda::combine_grid(grid, args.layout, count);
  cuda::launch_combine(args, cuda::Phases::kReceive, false, stream);
  args.state = lists;
  args.state.counter = kernels.main.base.state.counter;
  args.results = {
      .data = slot.sums, .stride = row_bytes, .dtype = DType::kF32, .are_aligned = are_aligned};
  cuda::launch_send_sums(args, ranks_of(own_host()), stream);
}

cuda::CallState PushHosts::summed_lists(std::size_t index, const cuda::CallState& own) const {
  if (shape_.config.reduce != Reduce::kPerHost) return own;
  cuda::CallState lists = slots_[index].of_hosts;
  lists.counter = own.counter;
  return lists;
}

ReturnMessage PushHosts::returned_by(int host, const PushDispatch& call) const {
  const auto size = static_cast<int>(map_.ranks_of(host).size());
  return return_message(shape_, size, call.max_tokens, room_);
}

void PushHosts::require_capture(std::size_t index, cudaStream_t stream) const {
  require(!slots_[index].packing.is_exact || !cuda::is_capturing(stream, "combine"),
          Errc::kInvalidArgument,
          "combine: the stream is captured into a graph, but its dispatch was not, and with "
          "exact_messages the graph would keep the sizes of that call; capture both or neither");
}

std::size_t PushHosts::num_return_blocks(const PushDispatch& call) const {
  std::size_t count = 1;
  for (int host = 0; host < map_.num_hosts(); ++host) {
    count = std::max(count, returned_by(host, call).blocks().size());
  }
  return count;
}

cuda::ReturnedRowsArgs PushHosts::rows_args(const Returns& of, const cuda::CallState& lists,
                                            const ReturnMessage& message,
                                            const std::int32_t* numbers,
                                            const RowBlock& block) const {
  cuda::ReturnedRowsArgs args{.layout = shape_.main,
                              .wire = shape_.config.combine_scheme,
                              .state = lists,
                              .watch = of.kernels.watch,
                              .num_topk = shape_.main_topk,
                              .width = message.width,
                              .numbers = of.slot.packing.is_packed ? numbers : nullptr,
                              .block = block};
  args.state.counter = of.kernels.main.base.state.counter;
  return args;
}

cuda::CrossingWeightsArgs PushHosts::weights_args(const Returns& of, const ReturnMessage& message,
                                                  std::byte* window, std::byte* at) const {
  return {.slots = shape_.weights,
          .state = of.kernels.main.base.state,
          .watch = of.kernels.watch,
          .num_records = message.num_records,
          .window = window,
          .message = at + message.weights};
}

void PushHosts::add_up_for_hosts(const Returns& of, const GridRequest& grid) const {
  const cuda::CallState& own = of.kernels.main.base.state;
  const std::int64_t num_tokens = of.call.num_tokens();
  add_up(of.slot, of.kernels, own, num_tokens, of.kernels.main.windows.base[rank_], grid,
         of.stream);
  cuda::ListGroupsArgs groups{.from = own,
                              .to = of.slot.of_hosts,
                              .num_topk = shape_.main_topk,
                              .num_tokens = static_cast<std::int32_t>(num_tokens),
                              .num_groups = map_.num_hosts()};
  for (int host = 0; host < map_.num_hosts(); ++host) groups.groups[host] = ranks_of(host);
  cuda::launch_list_groups(groups, of.stream);
  for (std::size_t i = 0; i < forwarded_.size(); ++i) {
    add_up(of.slot, of.kernels, of.slot.forwards[i].state, of.call.max_tokens,
           of.kernels.far_returns.base[forwarded_[i]], grid, of.stream);
  }
}

// Weights lie in the window before the rows of their rank do, and all rows have been collected.
void PushHosts::collect(const Returns& of, const RowBlock& block, const CountWords& counts,
                        std::vector<LinkMessage>& sent) const {
  for (std::size_t i = 0; i < forwarded_.size(); ++i) {
    const int source = forwarded_[i];
    const Forward& forward = of.slot.forwards[i];
    cuda::ReturnedRowsArgs args = rows_args(of, forward.state, of.out, forward.numbers, block);
    args.num_tokens = static_cast<std::int32_t>(of.call.max_tokens);
    args.ranks = ranks_of(own_host());
    args.window = of.kernels.far_returns.base[source];
    args.rows = forward.message;
    cuda::launch_collect_rows(args, of.max_ctas, of.stream);
    if (block.end == of.out.num_rows && of.out.num_records > 0) {
      std::byte* const window = of.kernels.far_weights.base[source];
      cuda::launch_collect_weights(weights_args(of, of.out, window, forward.message), of.stream);
    }
    add(sent, {source, source, forward.message},
        of.out.pieces(block, of.slot.packing.rows(counts.received[i])));
  }
}

void PushHosts::place(const Returns& of, std::size_t other, const RowBlock& block) const {
  const int host = others_[other];
  const ReturnMessage& in = of.in[other];
  std::byte* const from = of.slot.returned[static_cast<std::size_t>(host)];
  cuda::ReturnedRowsArgs args = rows_args(of, of.kernels.main.base.state, in,
                                          of.slot.numbers + other * tokens_per_rank(), block);
  args.num_tokens = static_cast<std::int32_t>(of.call.num_tokens());
  args.ranks = ranks_of(host);
  args.window = of.kernels.main.windows.base[rank_];
  args.rows = from;
  cuda::launch_place_rows(args, of.max_ctas, of.stream);
  if (block.end == in.num_rows && in.num_records > 0) {
    std::byte* const window = of.kernels.weights.base[rank_];
    cuda::launch_place_weights(weights_args(of, in, window, from), of.stream);
  }
}

void PushHosts::place_block(const Returns& of, std::size_t nth) const {
  of.slot.crossed[nth].make_wait(of.stream);
  for (std::size_t i = 0; i < others_.size(); ++i) {
    if (const auto block = nth_block(of.in[i], nth)) place(of, i, *block);
  }
}

// While a block crosses, the one before is placed, and the next one is collected.
void PushHosts::pass_back(std::size_t index, const SlotKernels& kernels, const PushDispatch& call,
                          const GridRequest& grid, int max_ctas, const WaitSite& site,
                          cudaStream_t stream) {
  const Slot& slot = slots_[index];
  Returns of{slot, kernels, call, max_ctas, stream, returned_by(own_host(), call), {}};
  for (const int host : others_) of.in.push_back(returned_by(host, call));
  if (shape_.config.reduce == Reduce::kPerHost) add_up_for_hosts(of, grid);
  const CountWords& counts = counts_of(index);
  const std::size_t num_blocks = num_return_blocks(call);
  for (std::size_t b = 0; b < num_blocks; ++b) {
    std::vector<LinkMessage> sent;
    std::vector<LinkMessage> received;
    if (const auto block = nth_block(of.out, b)) collect(of, *block, counts, sent);
    for (std::size_t i = 0; i < others_.size(); ++i) {
      const auto block = nth_block(of.in[i], b);
      if (!block) continue;
      std::byte* const to = slot.returned[static_cast<std::size_t>(others_[i])];
      add(received, {rank_, map_.forwarder(rank_, others_[i]), to},
          of.in[i].pieces(*block, slot.packing.rows(counts.sent[i])));
    }
    slot.packed[b].record(stream);
    slot.packed[b].make_wait(slot.message_stream.get());
    exchange(index, kCombine,
             {.state = kernels.main.base.state,
              .watch = kernels.watch,
              .place = cuda::WaitPlace::kReturnedRow},
             sent, received, site);
    slot.crossed[b].record(slot.message_stream.get());
    if (b > 0) place_block(of, b - 1);
  }
  place_block(of, num_blocks - 1);
}

}  // namespace switchyard
