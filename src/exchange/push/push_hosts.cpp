// SPDX-License-Identifier: Apache-2.0

#include "exchange/push/push_hosts.h"

#include "core/bytes.h"
#include "core/carver.h"
#include "core/fail.h"
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
  links_ = make_rank_links(group.control(), map_);
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

void PushHosts::exchange(std::size_t slot, Operation operation, cuda::EndStayArgs end,
                         const std::vector<LinkMessage>& sent,
                         const std::vector<LinkMessage>& received, const WaitSite& site,
                         cudaStream_t stream) {
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

void PushHosts::add_returned(std::vector<LinkMessage>& to, LinkMessage message,
                             const ReturnMessage& form, const Packing& packing,
                             std::uint32_t num_rows) {
  message.num_bytes = packing.is_exact ? num_rows * form.row_bytes : form.num_bytes;
  to.push_back(message);
  if (!packing.is_exact || form.num_records == 0) return;
  message.data += form.weights;
  message.num_bytes = static_cast<std::size_t>(form.num_records) * sizeof(std::uint64_t);
  to.push_back(message);
}

void PushHosts::pass_back(std::size_t index, const SlotKernels& kernels, const PushDispatch& call,
                          const GridRequest& grid, const WaitSite& site, cudaStream_t stream) {
  const Slot& slot = slots_[index];
  require(!slot.packing.is_exact || !cuda::is_capturing(stream, "combine"), Errc::kInvalidArgument,
          "combine: the stream is captured into a graph, but its dispatch was not, and with "
          "exact_messages the graph would keep the sizes of that call; capture both or neither");
  const bool is_per_host = shape_.config.reduce == Reduce::kPerHost;
  const cuda::CallState& own = kernels.main.base.state;
  if (is_per_host) {
    add_up(slot, kernels, own, call.num_tokens(), kernels.main.windows.base[rank_], grid, stream);
    cuda::ListGroupsArgs groups{.from = own,
                                .to = slot.of_hosts,
                                .num_topk = shape_.main_topk,
                                .num_tokens = static_cast<std::int32_t>(call.num_tokens()),
                                .num_groups = map_.num_hosts()};
    for (int host = 0; host < map_.num_hosts(); ++host) groups.groups[host] = ranks_of(host);
    cuda::launch_list_groups(groups, stream);
  }
  const auto form_of = [&](int host) {
    const auto size = static_cast<int>(map_.ranks_of(host).size());
    return return_message(shape_, size, call.max_tokens, room_);
  };
  const ReturnMessage out = form_of(own_host());
  const CountWords& counts = counts_of(index);
  const auto rows_args = [&](const cuda::CallState& lists, std::int64_t num_tokens,
                             const ReturnMessage& message, std::uint64_t ranks,
                             const std::int32_t* numbers, std::byte* window, std::byte* rows) {
    cuda::ReturnedRowsArgs args{.layout = shape_.main,
                                .wire = shape_.config.combine_scheme,
                                .state = lists,
                                .watch = kernels.watch,
                                .num_topk = shape_.main_topk,
                                .num_tokens = static_cast<std::int32_t>(num_tokens),
                                .width = message.width,
                                .ranks = ranks,
                                .window = window,
                                .rows = rows,
                                .numbers = slot.packing.is_packed ? numbers : nullptr};
    args.state.counter = kernels.main.base.state.counter;
    return args;
  };
  const auto weights_args = [&](const ReturnMessage& message, std::byte* window, std::byte* at) {
    return cuda::CrossingWeightsArgs{.slots = shape_.weights,
                                     .state = kernels.main.base.state,
                                     .watch = kernels.watch,
                                     .num_records = message.num_records,
                                     .window = window,
                                     .message = at + message.weights};
  };
  std::vector<LinkMessage> sent;
  for (std::size_t i = 0; i < forwarded_.size(); ++i) {
    const int source = forwarded_[i];
    std::byte* to = slot.forwards[i].message;
    if (is_per_host) {
      add_up(slot, kernels, slot.forwards[i].state, call.max_tokens,
             kernels.far_returns.base[source], grid, stream);
    }
    cuda::launch_collect_rows(
        rows_args(slot.forwards[i].state, call.max_tokens, out, ranks_of(own_host()),
                  slot.forwards[i].numbers, kernels.far_returns.base[source], to),
        grid.max_ctas, stream);
    if (out.num_records > 0) {
      cuda::launch_collect_weights(weights_args(out, kernels.far_weights.base[source], to), stream);
    }
    add_returned(sent, {source, source, to}, out, slot.packing, counts.received[i]);
  }
  std::vector<LinkMessage> received;
  for (std::size_t i = 0; i < others_.size(); ++i) {
    const int host = others_[i];
    std::byte* from = slot.returned[static_cast<std::size_t>(host)];
    add_returned(received, {rank_, map_.forwarder(rank_, host), from}, form_of(host), slot.packing,
                 counts.sent[i]);
  }
  exchange(index, kCombine,
           {.state = own, .watch = kernels.watch, .place = cuda::WaitPlace::kReturnedRow}, sent,
           received, site, stream);
  for (std::size_t i = 0; i < others_.size(); ++i) {
    const int host = others_[i];
    const ReturnMessage in = form_of(host);
    std::byte* from = slot.returned[static_cast<std::size_t>(host)];
    const std::int32_t* numbers = slot.numbers + i * tokens_per_rank();
    cuda::launch_place_rows(
        rows_args(kernels.main.base.state, call.num_tokens(), in, ranks_of(host), numbers,
                  kernels.main.windows.base[rank_], from),
        stream);
    if (in.num_records > 0) {
      cuda::launch_place_weights(weights_args(in, kernels.weights.base[rank_], from), stream);
    }
  }
}

// Unless they are exact, messages have their size whatever the routing is.
WireBytes PushHosts::wire_bytes(std::size_t index, const PushDispatch& call, bool gathers) const {
  const Slot& slot = slots_[index];
  const CountWords& counts = counts_of(index);
  const DispatchMessage message = message_of(call);
  const auto host_size = static_cast<int>(map_.ranks_of(own_host()).size());
  const ReturnMessage returned = return_message(shape_, host_size, call.max_tokens, room_);
  const LinkMessage any{.data = slot.sent};  // only sizes count
  std::vector<LinkMessage> sent;
  WireBytes bytes;
  for (std::size_t i = 0; i < others_.size(); ++i) {
    add_dispatched(sent, any, message, slot.packing, counts.sent[i]);
    if (slot.packing.is_exact) bytes.dispatch += kHeadBytes;
    if (gathers) {
      bytes.dispatch +=
          static_cast<std::int64_t>(routing_message(shape_, call.max_tokens).num_bytes);
    }
  }
  for (const LinkMessage& each : sent) bytes.dispatch += static_cast<std::int64_t>(each.num_bytes);
  sent.clear();
  for (std::size_t i = 0; i < forwarded_.size(); ++i) {
    add_returned(sent, any, returned, slot.packing, counts.received[i]);
  }
  for (const LinkMessage& each : sent) bytes.combine += static_cast<std::int64_t>(each.num_bytes);
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
  cuda::launch_place_rows(rows, nullptr);
  if (shape_.returns_weights) {
    cuda::CrossingWeightsArgs weights;
    weights.state = kernels.main.base.state;
    weights.watch = kernels.watch;
    cuda::launch_collect_weights(weights, nullptr);
    cuda::launch_place_weights(weights, nullptr);
  }
}

}  // namespace switchyard
