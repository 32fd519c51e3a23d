// SPDX-License-Identifier: Apache-2.0
//
// The kernels of a call over several hosts, in order; push_hosts.h has what runs between them.

#include "cuda/exchange/stage_log.h"
#include "exchange/log_calls.h"
#include "exchange/push/push_exchange.h"

namespace switchyard {

// Rows cross to other hosts, leave for the ranks of this host meanwhile, and those that have come
// are passed on. No kernel waits before that, so that the send phase of every rank ends.
void PushExchange::launch_over_hosts(const Slot& slot,
                                     const std::vector<cuda::DispatchArgs>& regions,
                                     const DispatchMessage& message, cuda::Phases phases,
                                     Stream stream) {
  if (cuda::sends(phases)) {
    const bool is_long = message.blocks().size() > 1;
    const KernelRoom room = is_long ? room_.beside_messages(stream) : room_.of(stream);
    log_kernel("dispatch", "slots and messages between hosts", room.num_ctas);
    const PushHosts::Crossing crossing{index_of(slot), regions,       message,     slot.dispatch,
                                       site_,          room.num_ctas, stream.get()};
    std::uint64_t* const counts_arrive = hosts_->begin_crossing(crossing);
    if (counts_arrive == nullptr) hosts_->cross(crossing);
    for (const cuda::DispatchArgs& args : regions) launch_send(slot, args, room, stream);
    if (counts_arrive != nullptr) {
      await_word(*counts_arrive, stream);
      hosts_->cross(crossing);
    }
    hosts_->pass_on(crossing,
                    [&](const cuda::DispatchArgs& args) { launch_send(slot, args, room, stream); });
  }
  if (!cuda::receives(phases)) return;
  for (cuda::DispatchArgs args : regions) {
    args.watch.timeout_ns = hosts_->dispatch_timeout_ns();
    launch_rows(slot, args, cuda::Phases::kReceive, stream);
    sync_if_shared(cuda::Phases::kReceive, stream);
  }
}

// CTAs share work by counters, which are those of this rank's own rows.
void PushExchange::launch_send(const Slot& slot, cuda::DispatchArgs args, const KernelRoom& room,
                               Stream stream) const {
  GridRequest request = grid_request(slot, room, cuda::Phases::kSend);
  request.may_share = args.rank == group_.rank();
  args.grid = cuda::dispatch_grid(request, args.layout, args.tokens.count);
  if (args.tokens.sent.first > 0) args.grid.num_notify_ctas = 0;
  cuda::record_stages(args, cuda::Phases::kSend);
  cuda::launch_dispatch(args, cuda::Phases::kSend, false, stream.get());
}

// What ranks of this host return for others' tokens must be there before it is passed back, and
// what comes back before it is summed.
void PushExchange::launch_return_over_hosts(const Slot& slot, const cuda::CombineArgs& args,
                                            cuda::Phases phases, Stream stream) {
  hosts_->require_capture(index_of(slot), stream.get());
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
    log_kernel("combine", "slots and messages between hosts",
               part.grid.num_ctas(cuda::sends(phase), cuda::receives(phase)));
    cuda::record_stages(part, phase);
    cuda::launch_combine(part, phase, false, stream.get());
  };
  if (cuda::sends(phases)) launch(cuda::Phases::kSend);
  if (!cuda::receives(phases)) return;
  const std::size_t index = index_of(slot);
  const KernelRoom room = room_.of(stream);
  const bool is_long = hosts_->num_return_blocks(slot.dispatch) > 1;
  const int max_ctas = is_long ? room_.beside_messages(stream).num_ctas : room.num_ctas;
  hosts_->pass_back(index, slot.kernels, slot.dispatch,
                    grid_request(slot, room, cuda::Phases::kReceive), max_ctas, site_,
                    stream.get());
  sync_if_shared(cuda::Phases::kReceive, stream);
  launch(cuda::Phases::kReceive);
}

}  // namespace switchyard
