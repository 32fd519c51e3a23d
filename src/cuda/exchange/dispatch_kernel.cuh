// SPDX-License-Identifier: Apache-2.0
//
// dispatch_kernel.cuh: the dispatch kernel for one row form. The role of a CTA follows from its
// index: notify CTAs come first, then senders, then receivers. The hardware starts CTAs in order
// and only receivers wait, so all rows of a rank are on their way before any of its CTAs waits for
// a peer. Hence a grid that runs in waves, or beside a kernel that takes most of the GPU, cannot
// deadlock. Nor can one whose CTAs share work: those that send come first, and none of them
// receives before everything has been taken to be sent, by CTAs that do not wait.
#pragma once

#include <algorithm>

#include "cuda/base/check.h"
#include "cuda/base/launch.h"
#include "cuda/exchange/call.cuh"
#include "cuda/exchange/dispatch_stream.cuh"

namespace switchyard::cuda {

/// The next notify task of this CTA, whose last one was `task`; for all threads.
template <bool kSharesWork>
__device__ __forceinline__ int next_task(const DispatchArgs& a, std::uint64_t call, int task) {
  if constexpr (kSharesWork) {
    __shared__ int next;
    __syncthreads();
    if (threadIdx.x == 0) next = take_work(a.state, call, Work::kNotify, 1);
    __syncthreads();
    return next;
  } else {
    return task + a.grid.num_notify_ctas;
  }
}

/// What a notify CTA does, from its first task on: all announcements come first, then routes.
/// `prefetched`: by begin_kernel.
template <bool kSharesWork>
__device__ __forceinline__ void notify(const DispatchArgs& a, std::uint32_t prefetched,
                                       CallOfCta& call, int first, std::byte* memory) {
  const int num_ranks = a.ownership.num_ranks;
#pragma unroll 1
  for (int task = first; task < num_ranks * (1 + a.grid.num_runs);
       task = next_task<kSharesWork>(a, call.number, task)) {
    const int part = a.grid.by_ranks.quotient(task);
    const int turned = task - part * num_ranks + a.rank;
    const int to = turned < num_ranks ? turned : turned - num_ranks;
    if (part == 0) {
      notify_counts(a, prefetched, call, to, memory);
    } else if (has_rank(a.sends_to, to)) {
      notify_routes(a, prefetched, call, to, (part - 1) * a.grid.tokens_per_run, memory);
    }
    __syncthreads();
  }
}

/// Every CTA has one role.
template <class Form>
__device__ __forceinline__ void play_role(const DispatchArgs& a, std::uint32_t prefetched,
                                          CallOfCta& call, bool sends, std::byte* memory) {
  const int num_notify_ctas = sends ? a.grid.num_notify_ctas : 0;
  const int num_sending = sends ? num_notify_ctas + a.grid.num_senders : 0;
  const int cta = static_cast<int>(blockIdx.x);
  if (cta >= num_sending) {
    call.request(a, prefetched);
    auto& shared = *reinterpret_cast<ReceiverShared*>(memory);
    receive_rows(a, call, cta - num_sending, OneChunk<Form::kWords>{}, shared,
                 reinterpret_cast<std::int32_t*>(&shared + 1));
  } else if (cta >= num_notify_ctas) {
    const int item = first_send_item(a, cta - num_notify_ctas);
    const SendItem first(a, item);
    prefetch_vec(a, VecSource(a, first.token, first.chunk, static_cast<int>(threadIdx.x) % kLanes));
    call.request(a, prefetched);
    send_rows<Form>(a, call, item, *reinterpret_cast<SenderShared*>(memory));
  } else {
    notify<false>(a, prefetched, call, cta, memory);
  }
}

/// The first CTAs send what is left; every one receives what is left.
template <class Form>
__device__ __forceinline__ void share_work(const DispatchArgs& a, std::uint32_t prefetched,
                                           CallOfCta& call, bool sends, bool receives,
                                           std::byte* memory) {
  call.request(a, prefetched);
  __syncthreads();
  if (sends && static_cast<int>(blockIdx.x) < a.grid.num_senders) {
    notify<true>(a, prefetched, call, next_task<true>(a, call.number, 0), memory);
    stream_sent_rows<Form>(a, call, *reinterpret_cast<ItemScales*>(memory));
    __syncthreads();
  }
  if (!receives) return;
  auto& shared = *reinterpret_cast<StreamShared*>(memory);
  receive_rows(a, call, static_cast<int>(blockIdx.x), ChunkStream<Form::kWords>{&shared.scales},
               shared.receiver, reinterpret_cast<std::int32_t*>(&shared + 1));
}

template <class Form, bool kSharesWork>
__global__ void __launch_bounds__(kExchangeThreads, kExchangeCtasPerSm)
    dispatch_kernel(const __grid_constant__ DispatchArgs a, bool sends, bool receives) {
  extern __shared__ __align__(16) std::byte memory[];
  __shared__ CallOfCta call;
  const std::uint32_t prefetched = begin_kernel(a);
  if constexpr (kSharesWork) {
    share_work<Form>(a, prefetched, call, sends, receives, memory);
  } else {
    play_role<Form>(a, prefetched, call, sends, memory);
  }
  stamp_end(a);
  if (!receives) return;
  __syncthreads();
  advance_call(a.state, call.number);
}

template <class Form, bool kSharesWork>
void launch_form(const DispatchArgs& args, Phases phases, bool programmatic, cudaStream_t stream) {
  const auto ranks = static_cast<std::size_t>(args.ownership.num_ranks);
  const auto local = static_cast<std::size_t>(args.layout.shape.max_local_experts);
  const std::size_t shared =
      std::max({sizeof(SenderShared), notify_shared_bytes(args),
                (kSharesWork ? sizeof(StreamShared) : sizeof(ReceiverShared)) +
                    (ranks + 1) * local * sizeof(std::int32_t)});
  const int ctas = args.grid.num_ctas(sends(phases), receives(phases));
  const auto kernel = dispatch_kernel<Form, kSharesWork>;
  if (phases == Phases::kNone) allow_shared_memory(kernel, shared, "dispatch");
  launch_kernel(kernel,
                {std::max(1, ctas), args.grid.num_warps * kLanes, shared, programmatic, stream},
                "dispatch", args, sends(phases), receives(phases));
}

/// With Phases::kNone both kernels of the form, which do nothing.
template <class Form>
void launch_form(const DispatchArgs& args, Phases phases, bool programmatic, cudaStream_t stream) {
  if (phases == Phases::kNone || args.grid.shares_work) {
    launch_form<Form, true>(args, phases, programmatic, stream);
  }
  if (phases == Phases::kNone || !args.grid.shares_work) {
    launch_form<Form, false>(args, phases, programmatic, stream);
  }
}

}  // namespace switchyard::cuda
