// SPDX-License-Identifier: Apache-2.0
//
// Tokens on their way to ranks of other hosts: packed into messages, sent to forwarders, and passed
// on by them.

#include <atomic>
#include <mutex>

#include "cuda/base/check.h"
#include "exchange/push/push_hosts.h"

namespace switchyard {

cuda::Messages PushHosts::messages_of(const Slot& slot, const Packing& packing) const {
  return {packing.is_packed ? static_cast<std::int32_t>(others_.size()) : 1, slot.message_stride};
}

PushHosts::Packing PushHosts::packing_of(const DispatchMessage& message, std::int64_t max_tokens,
                                         cudaStream_t stream) const {
  if (message.is_routing) return {};  // all of it goes everywhere
  const bool is_exact = room_.is_exact && !cuda::is_capturing(stream, "dispatch");
  return {is_exact || message.num_rows < max_tokens, is_exact};
}

void PushHosts::number_own(const Slot& slot, CountWords& counts, const cuda::DispatchArgs& args,
                           const DispatchMessage& message, cudaStream_t stream) const {
  cuda::NumberRowsArgs own{.ownership = args.ownership,
                           .state = args.state,
                           .watch = args.watch,
                           .num_topk = args.num_topk,
                           .num_tokens = args.tokens.count,
                           .capacity = static_cast<std::int32_t>(message.num_rows)};
  for (std::size_t i = 0; i < others_.size(); ++i) {
    std::byte* to = slot.sent + i * slot.message_stride;
    own.lists[own.num_lists++] = {.ids = args.tokens.ids,
                                  .ranks = ranks_of(others_[i]),
                                  .numbers = slot.numbers + i * tokens_per_rank(),
                                  .count = reinterpret_cast<std::uint32_t*>(to + message.count),
                                  .pinned_count = &counts.sent[i],
                                  .source = rank_,
                                  .host = others_[i]};
  }
  cuda::launch_number_rows(own, stream);
}

void PushHosts::number_forwarded(const Slot& slot, const cuda::DispatchArgs& own,
                                 const DispatchMessage& message, std::int64_t max_tokens,
                                 cudaStream_t stream) const {
  if (forwarded_.empty()) return;
  cuda::NumberRowsArgs args{.ownership = own.ownership,
                            .state = own.state,
                            .watch = own.watch,
                            .num_topk = own.num_topk,
                            .num_tokens = static_cast<std::int32_t>(max_tokens),
                            .capacity = static_cast<std::int32_t>(message.num_rows)};
  for (std::size_t i = 0; i < forwarded_.size(); ++i) {
    const Forward& forward = slot.forwards[i];
    args.lists[args.num_lists++] = {.ids = {forward.message + message.ids, false},
                                    .ranks = ranks_of(own_host()),
                                    .numbers = forward.numbers,
                                    .source = forwarded_[i],
                                    .host = own_host()};
  }
  cuda::launch_number_rows(args, stream);
}

// The kernel behind the messages compares the modes that have come with them.
cuda::EndStayArgs PushHosts::end_of_dispatch(const Slot& slot, const cuda::DispatchArgs& own,
                                             const DispatchMessage& message) const {
  cuda::EndStayArgs end{.state = own.state, .watch = own.watch, .mode = own.mode};
  for (std::size_t i = 0; i < forwarded_.size(); ++i) {
    end.sources[end.num_sources] = forwarded_[i];
    end.modes[end.num_sources++] =
        reinterpret_cast<const std::uint32_t*>(slot.forwards[i].message + message.mode);
  }
  return end;
}

std::uint64_t* PushHosts::begin_crossing(const Crossing& of) {
  const auto& [index, regions, message, call, site, max_ctas, stream] = of;
  Slot& slot = slots_[index];
  const cuda::DispatchArgs& last = regions.back();
  const Packing packing = packing_of(message, call.max_tokens, stream);
  if (!message.is_routing) slot.packing = packing;
  cuda::launch_pack_ids({.ids = last.tokens.ids,
                         .topk_weights = last.tokens.topk_weights,
                         .num_tokens = last.tokens.count,
                         .max_tokens = static_cast<std::int32_t>(call.max_tokens),
                         .num_topk = last.num_topk,
                         .num_experts = last.ownership.num_experts,
                         .mode = last.mode,
                         .messages = messages_of(slot, packing),
                         .to_ids = reinterpret_cast<std::int32_t*>(slot.sent + message.ids),
                         .to_weights = last.layout.shape.sends_weights
                                           ? reinterpret_cast<float*>(slot.sent + message.weights)
                                           : nullptr,
                         .to_mode = reinterpret_cast<std::uint32_t*>(slot.sent + message.mode)},
                        stream);
  {
    const std::lock_guard lock(mutex_);
    last_mode_ = last.mode;
  }
  CountWords& counts = counts_of(index);
  if (packing.is_packed) number_own(slot, counts, last, message, stream);
  if (packing.is_exact) exchange_heads(of);
  const std::vector<RowBlock> blocks = message.blocks();
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    pack_block(of, packing, blocks[b]);
    slot.packed[b].record(stream);
  }
  return packing.is_exact ? &counts.have_arrived : nullptr;
}

void PushHosts::pack_block(const Crossing& of, const Packing& packing,
                           const RowBlock& block) const {
  const Slot& slot = slots_[of.slot];
  for (std::size_t i = 0; i < of.regions.size(); ++i) {
    const CrossingRows& rows = of.message.regions[i];
    cuda::launch_pack_rows(of.regions[i],
                           {.messages = messages_of(slot, packing),
                            .rows = slot.sent + rows.rows,
                            .stride = rows.stride,
                            .scales = rows.has_scales() ? slot.sent + rows.scales : nullptr,
                            .numbers = packing.is_packed ? slot.numbers : nullptr,
                            .numbers_stride = static_cast<std::int64_t>(tokens_per_rank()),
                            .block = block,
                            .max_ctas = of.max_ctas},
                           of.stream);
  }
}

// Of exact messages: modes and counts, which the host waits for.
void PushHosts::exchange_heads(const Crossing& of) {
  const Slot& slot = slots_[of.slot];
  const DispatchMessage& message = of.message;
  CountWords& counts = counts_of(of.slot);
  std::atomic_ref(counts.have_arrived).store(0, std::memory_order_relaxed);
  std::vector<LinkMessage> sent;
  std::vector<LinkMessage> received;
  for (std::size_t i = 0; i < others_.size(); ++i) {
    std::byte* from = slot.sent + i * slot.message_stride;
    add(sent, {rank_, map_.forwarder(rank_, others_[i]), from}, {message.head()});
  }
  for (std::size_t i = 0; i < forwarded_.size(); ++i) {
    add(received, {forwarded_[i], forwarded_[i], slot.forwards[i].message}, {message.head()});
  }
  cuda::EndStayArgs end = end_of_dispatch(slot, of.regions.back(), message);
  end.counts = counts.received;
  end.have_arrived = &counts.have_arrived;
  slot.packed[0].record(of.stream);
  slot.packed[0].make_wait(slot.message_stream.get());
  exchange(of.slot, kDispatch, end, sent, received, of.site);
}

void PushHosts::add(std::vector<LinkMessage>& to, const LinkMessage& message,
                    const std::vector<MessagePiece>& pieces) {
  for (const MessagePiece& piece : pieces) {
    LinkMessage& added = to.emplace_back(message);
    added.data += piece.offset;
    added.num_bytes = piece.num_bytes;
  }
}

void PushHosts::cross(const Crossing& of) {
  const Slot& slot = slots_[of.slot];
  const CountWords& counts = counts_of(of.slot);
  const Packing packing = of.message.is_routing ? Packing{} : slot.packing;
  const std::vector<RowBlock> blocks = of.message.blocks();
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    slot.packed[b].make_wait(slot.message_stream.get());
    std::vector<LinkMessage> sent;
    std::vector<LinkMessage> received;
    for (std::size_t i = 0; i < others_.size(); ++i) {
      std::byte* from = slot.sent + (packing.is_packed ? i * slot.message_stride : 0);
      add(sent, {rank_, map_.forwarder(rank_, others_[i]), from},
          of.message.pieces(blocks[b], packing.rows(counts.sent[i])));
    }
    for (std::size_t i = 0; i < forwarded_.size(); ++i) {
      add(received, {forwarded_[i], forwarded_[i], slot.forwards[i].message},
          of.message.pieces(blocks[b], packing.rows(counts.received[i])));
    }
    exchange(of.slot, kDispatch, end_of_dispatch(slot, of.regions.back(), of.message), sent,
             received, of.site);
    slot.crossed[b].record(slot.message_stream.get());
  }
}

void PushHosts::pass_on(const Crossing& of, const Launch& launch) const {
  const Slot& slot = slots_[of.slot];
  const CountWords& counts = counts_of(of.slot);
  const Packing packing = of.message.is_routing ? Packing{} : slot.packing;
  const std::vector<RowBlock> blocks = of.message.blocks();
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    slot.crossed[b].make_wait(of.stream);
    const bool is_first = blocks[b].first == 0;
    if (is_first && packing.is_packed) {
      number_forwarded(slot, of.regions.back(), of.message, of.call.max_tokens, of.stream);
    }
    for (std::size_t i = 0; i < forwarded_.size(); ++i) {
      const bool has_rows = !packing.is_exact || blocks[b].count(counts.received[i]) > 0;
      if (!is_first && !has_rows) continue;
      for (std::size_t r = 0; r < of.regions.size(); ++r) {
        cuda::DispatchArgs args = forwarded_args(slot.forwards[i], forwarded_[i], of.regions[r],
                                                 of.message, r, of.call.max_tokens);
        if (packing.is_packed) args.tokens.numbers = slot.forwards[i].numbers;
        args.tokens.sent = blocks[b];
        launch(args);
      }
    }
  }
}

// The region `own` of another rank: with its number and tokens, and with lists of its own.
cuda::DispatchArgs PushHosts::forwarded_args(const Forward& forward, int source,
                                             const cuda::DispatchArgs& own,
                                             const DispatchMessage& message, std::size_t region,
                                             std::int64_t max_tokens) const {
  const CrossingRows& rows = message.regions[region];
  cuda::DispatchArgs args = own;
  args.rank = source;
  args.state = forward.state;
  args.state.counter = own.state.counter;
  if (args.scheme.is_simulated()) args.scheme = schemes::kNone;
  args.tokens = {.data = forward.message + rows.rows,
                 .stride = rows.stride,
                 .count = static_cast<std::int32_t>(max_tokens),
                 .dtype = args.scheme.dtype,
                 .tensor_scale = own.tokens.tensor_scale,
                 .ids = {forward.message + message.ids, false},
                 .are_aligned = true};
  if (rows.has_scales()) {
    args.tokens.scales = forward.message + rows.scales;
    args.tokens.scale_stride[0] = own.scales.block.num_scales;
    args.tokens.scale_stride[1] = 1;
  }
  if (own.layout.shape.sends_weights) {
    args.tokens.topk_weights = reinterpret_cast<const float*>(forward.message + message.weights);
  }
  args.sends_to = ranks_of(own_host());
  args.returned_by = args.sends_to;
  args.reports_ids = false;
  return args;
}

}  // namespace switchyard
