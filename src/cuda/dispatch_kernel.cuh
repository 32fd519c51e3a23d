// SPDX-License-Identifier: Apache-2.0
//
// dispatch_kernel.cuh: the dispatch kernel of one form. CTAs have roles by their number: 0
// announces, then come the senders, then the receivers. The hardware starts CTAs in order, and
// senders never wait, so every rank's rows are on their way before any CTA of it waits for others:
// a grid that runs in waves, or beside a kernel that takes most of the GPU, cannot deadlock.
#pragma once

#include "cuda/call.cuh"
#include "cuda/check.h"
#include "cuda/dispatch_receive.cuh"
#include "cuda/dispatch_send.cuh"
#include "cuda/launch.h"

namespace switchyard {

template <class Form>
__global__ void __launch_bounds__(kExchangeThreads, kExchangeCtasPerSm)
    dispatch_kernel(const __grid_constant__ DispatchArgs a, bool sends, bool receives) {
  extern __shared__ std::byte memory[];
  __shared__ CallOfCta call;
  const std::uint32_t asked = begin_kernel(a);
  std::uint32_t asked_too = 0;
  const int num_sending = sends ? 1 + a.num_senders : 0;
  const int cta = static_cast<int>(blockIdx.x);
  if (cta >= num_sending) {
    call.ask(a);
    auto& shared = *reinterpret_cast<ReceiverShared*>(memory);
    receive_tokens<Form::kWords>(a, call, cta - num_sending, shared,
                                 reinterpret_cast<std::int32_t*>(&shared + 1));
  } else {
    auto& shared = *reinterpret_cast<SenderShared*>(memory);
    auto* counts = reinterpret_cast<std::uint32_t*>(&shared + 1);
    const int warp = static_cast<int>(threadIdx.x) / kLanes;
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    const bool announces = cta == 0;
    const SendRange range(a, announces ? 0 : cta - 1);
    // All loads of the first wait, then what waits for them.
    const int num_counted = announces ? a.num_tokens : range.begin;
    const ChoiceWalk walk(a, num_counted);
    const std::int32_t counted_id = walk.load(a, num_counted);
    const std::int32_t own_id = announces ? -1 : load_id_of_batch(a, range.begin, range.end);
    if (!announces) asked_too = ask_for_item(a, range, SendItem(a, range, warp), lane);
    if (lane < kMaxPieceScaleBytes) shared.scales[warp][lane] = 0;
    clear_counts(a, counts);
    call.ask(a);
    shared.ids[threadIdx.x] = own_id;
    count_tokens(a, num_counted, walk, counted_id, counts);
    if (announces && call.has_failed == 0) {
      announce(a, call.number, counts);
    } else if (call.has_failed == 0) {
      send_tokens<Form>(a, call.number, range, shared, counts);
    }
  }
  end_kernel(asked ^ asked_too);
  if (!receives) return;
  __syncthreads();
  count_call(a.state);
}

template <class Form>
void launch_form(const DispatchArgs& args, Phases phases, bool programmatic, cudaStream_t stream) {
  const auto ranks = static_cast<std::size_t>(args.ownership.num_ranks);
  const auto experts = static_cast<std::size_t>(args.ownership.num_experts);
  const auto local = static_cast<std::size_t>(args.ownership.count(args.rank));
  const std::size_t shared =
      std::max(sizeof(SenderShared) + (experts + ranks) * sizeof(std::uint32_t),
               sizeof(ReceiverShared) + (ranks + 1) * local * sizeof(std::int32_t));
  const int ctas =
      (sends(phases) ? 1 + args.num_senders : 0) + (receives(phases) ? args.num_receivers : 0);
  if (phases == Phases::kNone) allow_shared_memory(dispatch_kernel<Form>, shared, "dispatch");
  launch_kernel(dispatch_kernel<Form>,
                {std::max(1, ctas), kExchangeThreads, shared, programmatic, stream}, "dispatch",
                args, sends(phases), receives(phases));
}

}  // namespace switchyard
