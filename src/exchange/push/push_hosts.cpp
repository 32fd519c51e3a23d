// SPDX-License-Identifier: Apache-2.0

#include "exchange/push/push_hosts.h"

#include "core/bytes.h"
#include "core/carver.h"
#include "core/clock.h"
#include "core/fail.h"
#include "core/format_ranks.h"
#include "core/log.h"
#include "core/round_up.h"
#include "cuda/base/check.h"
#include "cuda/exchange/grid.h"
#include "cuda/exchange/routing.h"
#include "engine/engine.h"
#include "heap/gpus_of_ranks.h"

namespace switchyard {
namespace {

cuda::CallState lists_at(std::byte* memory, const ListOffsets& offsets, bool has_weights) {
  cuda::CallState lists;
  lists.num_partials = reinterpret_cast<std::int32_t*>(memory + offsets.num_partials);
  lists.columns = reinterpret_cast<std::int32_t*>(memory + offsets.columns);
  lists.partial_ranks = reinterpret_cast<std::int32_t*>(memory + offsets.partial_ranks);
  if (has_weights) {
    lists.partial_weights = reinterpret_cast<float*>(memory + offsets.partial_weights);
  }
  return lists;
}

}  // namespace

std::unique_ptr<PushHosts> PushHosts::make(const Group& group, const PushExchangeShape& shape,
                                           const ExchangeOptions& options) {
  const HostMap map(group.control().hosts());
  if (map.num_hosts() == 1) return nullptr;
  return std::make_unique<PushHosts>(group, shape, map, options);
}

PushHosts::PushHosts(const Group& group, const PushExchangeShape& shape, const HostMap& map,
                     const ExchangeOptions& options)
    : shape_(shape),
      map_(map),
      rank_(group.rank()),
      room_{options.host_capacity, options.exact_messages},
      forwarded_(map_.forwarded_by(rank_)),
      peers_(map_.linked_with(rank_)),
      host_(group.engine().make_host_group()) {
  for (int host = 0; host < map_.num_hosts(); ++host) {
    if (host != own_host()) others_.push_back(host);
  }
  const GpusOfRanks gpus(group.control(), options.device.index);
  gpus.require_distinct_machines(group.control(), map_);
  ranks_on_gpu_ = gpus.ranks_on_gpu_of(rank_);
  has_shared_gpus_ = gpus.has_shared_gpus();
  const auto num_slots = static_cast<std::size_t>(shape_.config.max_in_flight);
  slots_.resize(num_slots);
  stays_.resize(num_slots * kNumOperations);
  words_ = cuda::PinnedBuffer(stays_.size() * sizeof(cuda::StayWords));
  counts_ = cuda::PinnedBuffer(num_slots * sizeof(CountWords));
  timeout_ms_ = group.timeout_ms();
  const std::int64_t began_ns = now_ns();
  links_ = make_rank_links(group.control(), map_);
  log(LogLevel::kDebug, "exchange", "rank {} is linked with {} over NCCL, after {:.1f} ms", rank_,
      format_ranks(peers_), static_cast<double>(now_ns() - began_ns) * 1e-6);
  warn_of_padding();
}

// Over many hosts few tokens go to any one of them, but every message has room for all.
void PushHosts::warn_of_padding() const {
  constexpr int kManyHosts = 8;  // with top-8 of 256 experts a third of the rows are for nobody
  const std::int64_t max_tokens = shape_.config.max_tokens_per_rank;
  const bool are_padded = !room_.is_exact && room_.num_rows(max_tokens) == max_tokens;
  if (rank_ != 0 || map_.num_hosts() <= kManyHosts || !are_padded) return;
  const std::size_t bytes = dispatch_message(shape_, max_tokens, false, room_).num_bytes;
  log(LogLevel::kWarn, "exchange",
      "a dispatch of up to {} tokens per rank sends {:.1f} MB to each of {} other hosts, wherever "
      "its tokens go; ExchangeOptions::host_capacity, or exact_messages, sends less",
      max_tokens, static_cast<double>(bytes) * 1e-6, others_.size());
}

std::uint64_t PushHosts::ranks_of(int host) const {
  std::uint64_t ranks = 0;
  for (const int rank : map_.ranks_of(host)) ranks |= std::uint64_t{1} << rank;
  return ranks;
}

cuda::PeerTable PushHosts::windows(const DeviceWindow& window) const {
  cuda::PeerTable table{};
  for (const int rank : map_.ranks_of(own_host())) {
    table.base[rank] = window.base(map_.local_of(rank));
  }
  return table;
}

// Rows for a rank of another host go to the part that its forwarder here keeps for it.
void PushHosts::describe(const DeviceWindow& window, SlotKernels& to) const {
  to.sends_to = ranks_of(own_host());
  const ReturnPart part = return_part(shape_);
  for (const int rank : map_.ranks_of(own_host())) {
    const std::vector<int> sources = map_.forwarded_by(rank);
    for (std::size_t i = 0; i < sources.size(); ++i) {
      std::byte* at = window.base(map_.local_of(rank)) + return_part_offset(shape_, i);
      to.far_returns.base[sources[i]] = at - shape_.main.returns_offset;
      to.far_weights.base[sources[i]] = at + part.weights;
    }
  }
}

void PushHosts::allocate(std::size_t index, cudaStream_t stream) {
  const HostsSlotLayout layout = hosts_slot_layout(shape_, map_, rank_, room_);
  Slot& slot = slots_[index];
  slot.memory = cuda::DeviceBuffer(layout.num_bytes);
  std::byte* const base = slot.memory.data();
  cuda::check_cuda(cudaMemsetAsync(base, 0, layout.num_bytes, stream), "cudaMemsetAsync");
  slot.sent = base + layout.sent;
  slot.message_stride = layout.message_stride;
  slot.numbers = reinterpret_cast<std::int32_t*>(base + layout.numbers);
  slot.forwards.clear();
  for (const HostsSlotLayout::Forward& forward : layout.forwards) {
    slot.forwards.push_back({base + forward.message, lists_at(base, forward.lists, true),
                             reinterpret_cast<std::int32_t*>(base + forward.numbers)});
  }
  slot.returned.clear();
  for (int host = 0; host < map_.num_hosts(); ++host) {
    const std::size_t offset = layout.returned[static_cast<std::size_t>(host)];
    slot.returned.push_back(host == own_host() ? nullptr : base + offset);
  }
  if (shape_.config.reduce != Reduce::kPerHost) return;
  slot.of_ranks = lists_at(base, layout.of_ranks, false);
  slot.of_hosts = lists_at(base, layout.of_hosts, false);
  slot.sums = base + layout.sums;
}

// In the stream of messages. A block of which no message has rows is none.
void PushHosts::exchange(std::size_t slot, Operation operation, cuda::EndStayArgs end,
                         const std::vector<LinkMessage>& sent,
                         const std::vector<LinkMessage>& received, const WaitSite& site) {
  const auto has_bytes = [](const LinkMessage& message) { return message.num_bytes > 0; };
  if (std::none_of(sent.begin(), sent.end(), has_bytes) &&
      std::none_of(received.begin(), received.end(), has_bytes)) {
    return;
  }
  cudaStream_t stream = slots_[slot].message_stream.get();
  cuda::StayWords& stay = stay_of(slot, operation);
  end.ended = &stay.ended;
  end.peer = peers_[0];
  cuda::launch_begin_stay(&stay.begun, stream);
  links_->exchange(sent, received, site, stream);
  cuda::launch_end_stay(end, stream);
}

void PushHosts::list_returns(std::size_t index, const cuda::RoutingArgs& routing,
                             cudaStream_t stream) const {
  const Slot& slot = slots_[index];
  for (std::size_t i = 0; i < forwarded_.size(); ++i) {
    cuda::RoutingArgs args = routing;
    args.rank = forwarded_[i];
    args.state = slot.forwards[i].state;
    args.state.counter = routing.state.counter;
    cuda::launch_list_returns(args, ranks_of(own_host()), stream);
  }
}

// Unless they are exact, messages have their size whatever the routing is.
WireBytes PushHosts::wire_bytes(std::size_t index, const PushDispatch& call, bool gathers) const {
  const Slot& slot = slots_[index];
  const CountWords& counts = counts_of(index);
  const DispatchMessage message = message_of(call);
  const ReturnMessage returned = returned_by(own_host(), call);
  const auto size_of = [](const std::vector<MessagePiece>& pieces) {
    std::size_t size = 0;
    for (const MessagePiece& piece : pieces) size += piece.num_bytes;
    return static_cast<std::int64_t>(size);
  };
  WireBytes bytes;
  for (std::size_t i = 0; i < others_.size(); ++i) {
    for (const RowBlock& block : message.blocks()) {
      bytes.dispatch += size_of(message.pieces(block, slot.packing.rows(counts.sent[i])));
    }
    if (slot.packing.is_exact) bytes.dispatch += size_of({message.head()});
    if (gathers) {
      bytes.dispatch +=
          static_cast<std::int64_t>(routing_message(shape_, call.max_tokens).num_bytes);
    }
  }
  for (std::size_t i = 0; i < forwarded_.size(); ++i) {
    for (const RowBlock& block : returned.blocks()) {
      bytes.combine += size_of(returned.pieces(block, slot.packing.rows(counts.received[i])));
    }
  }
  return bytes;
}

void PushHosts::run_kernels(const SlotKernels& kernels) const {
  for (const DType dtype : {DType::kBF16, shape_.config.scheme.dtype}) {
    PushDispatch call;
    call.tokens.dtype = dtype;
    cuda::DispatchArgs args = token_args(kernels, call);
    cuda::launch_pack_rows(args, {}, nullptr);
    if (!args.scheme.is_simulated()) continue;
    args.scheme = schemes::kNone;
    cuda::launch_dispatch(args, cuda::Phases::kNone, false, nullptr);
  }
  PushDispatch call;
  call.payloads.resize(kernels.payloads.size());
  for (std::size_t i = 0; i < kernels.payloads.size(); ++i) {
    cuda::launch_pack_rows(payload_args(kernels, call, i), {}, nullptr);
  }
  if (shape_.gathers_routing) cuda::launch_pack_rows(gather_args(kernels, call), {}, nullptr);
  if (shape_.gathers && shape_.gathers_routing) {
    cuda::launch_list_returns(routing_args(kernels, call), 0, nullptr);
  }
  cuda::launch_pack_ids({}, nullptr);
  if (room_.may_pack(shape_.config.max_tokens_per_rank)) cuda::launch_number_rows({}, nullptr);
  const cuda::CallState& state = kernels.main.base.state;
  cuda::launch_begin_stay(&stay_of(0, kDispatch).begun, nullptr);
  cuda::launch_end_stay(
      {.ended = &stay_of(0, kDispatch).ended, .state = state, .watch = kernels.watch}, nullptr);
  cuda::ReturnedRowsArgs rows;
  rows.layout = shape_.main;
  rows.wire = shape_.config.combine_scheme;
  rows.watch = kernels.watch;
  if (shape_.config.reduce == Reduce::kPerHost) {
    cuda::launch_list_groups({}, nullptr);
    cuda::launch_send_sums(combine_args(kernels, {}), 0, nullptr);
  }
  cuda::launch_collect_rows(rows, 1, nullptr);
  cuda::launch_place_rows(rows, 1, nullptr);
  if (shape_.returns_weights) {
    cuda::CrossingWeightsArgs weights;
    weights.state = kernels.main.base.state;
    weights.watch = kernels.watch;
    cuda::launch_collect_weights(weights, nullptr);
    cuda::launch_place_weights(weights, nullptr);
  }
}

}  // namespace switchyard
