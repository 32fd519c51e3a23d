// SPDX-License-Identifier: Apache-2.0
//
// The kernels of a call over several hosts, in order; push_hosts.h has what runs between them.

#include "cuda/exchange/stage_log.h"
#include "exchange/push/push_exchange.h"

namespace switchyard {

// Rows are packed for other hosts, then leave for the ranks of this host while the first of them
// cross; those of other hosts are passed on. No kernel waits before that, so that the send phase of
// every rank ends.
void PushExchange::launch_over_hosts(const Slot& slot,
                                     const std::vector<cuda::DispatchArgs>& regions,
                                     const DispatchMessage& message, cuda::Phases phases,
                                     Stream stream) {
  if (cuda::sends(phases)) {
    const bool is_long = message.blocks().size() > 1;
    const KernelRoom room = is_long ? room_.beside_messages(stream) : room_.of(stream);
    std::uint64_t* const counts_arrive = hosts_->begin_crossing(index_of(slot), regions, message,
                                                                slot.dispatch, site_, stream.get());
    for (const cuda::DispatchArgs& args : regions) launch_sent(slot, args, room, true, stream);
    const auto pass_on = [&](const cuda::DispatchArgs& args) {
      launch_sent(slot, args, room, false, stream);
    };
    or_abort([&] {
      if (counts_arrive != nullptr) await_word(*counts_arrive, stream);
      hosts_->cross(index_of(slot), regions, message, slot.dispatch, site_, stream.get(), pass_on);
    });
  }
  if (!cuda::receives(phases)) return;
  for (cuda::DispatchArgs args : regions) {
    args.watch.timeout_ns = hosts_->dispatch_timeout_ns();
    launch_rows(slot, args, cuda::Phases::kReceive, stream);
    sync_if_shared(cuda::Phases::kReceive, stream);
  }
}

// CTAs share work by counters, which are those of this rank's own rows.
void PushExchange::launch_sent(const Slot& slot, cuda::DispatchArgs args, const KernelRoom& room,
                               bool are_own, Stream stream) const {
  GridRequest request = grid_request(slot, room, cuda::Phases::kSend);
  request.may_share = are_own;
  args.grid = cuda::dispatch_grid(request, args.layout, args.tokens.count);
  if (args.tokens.sent.first > 0) args.grid.num_notify_ctas = 0;
  cuda::record_stages(args, cuda::Phases::kSend);
  cuda::launch_dispatch(args, cuda::Phases::kSend, false, stream.get());
}

// What ranks of this host return for others' tokens must be there before it is passed back, and
// what comes back before it is summed.
void PushExchange::launch_return_over_hosts(const Slot& slot, const cuda::CombineArgs& args,
                                            cuda::Phases phases, Stream stream) {
  const auto launch = [&](cuda::Phases phase) {
    cuda::CombineArgs part = args;
    if (phase == cuda::Phases::kSend) {
      part.sums = {};  // a kernel that streams sums whatever is there, and it is too early for that
    } else {
      part.results = {};
      part.state = hosts_->summed_lists(index_of(slot), part.state);
    }
    GridRequest request = grid_request(slot, room_.of(stream), phase);
    request.can_stream = gpu_can_stream_ && cuda::can_stream(part, phase);
    part.grid = cuda::combine_grid(request, part.layout, slot.dispatch.tokens.count);
    cuda::record_stages(part, phase);
    cuda::launch_combine(part, phase, false, stream.get());
  };
  if (cuda::sends(phases)) launch(cuda::Phases::kSend);
  if (!cuda::receives(phases)) return;
  const bool is_long = hosts_->num_return_blocks(slot.dispatch) > 1;
  const KernelRoom room = is_long ? room_.beside_messages(stream) : room_.of(stream);
  hosts_->pass_back(index_of(slot), slot.kernels, slot.dispatch,
                    grid_request(slot, room, cuda::Phases::kReceive), site_, stream.get());
  sync_if_shared(cuda::Phases::kReceive, stream);
  launch(cuda::Phases::kReceive);
}

}  // namespace switchyard
