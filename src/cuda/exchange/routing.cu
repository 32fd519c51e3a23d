// SPDX-License-Identifier: Apache-2.0
//
// routing.cu: simple kernels, meant for prefill rather than decode. None of them waits for a peer.

#include <algorithm>

#include "cuda/exchange/call.cuh"
#include "cuda/exchange/given_id.cuh"
#include "cuda/exchange/routing_rows.cuh"
#include "cuda/exchange/wire.cuh"

namespace switchyard::cuda {
namespace {

// One warp per token, one lane per choice.
__global__ void __launch_bounds__(kRoutingThreads) keep_routing_kernel(RoutingArgs a) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  for (std::int64_t token = thread_number() / kLanes; token < a.num_tokens;
       token += num_threads() / kLanes) {
    const std::int64_t at = token * a.num_topk + lane;
    const bool is_choice = lane < a.num_topk;
    GivenId given;
    if (is_choice) given.request(a.ids, at);
    const std::int32_t id = given.value(a.ids);
    const unsigned same = __match_any_sync(kAllLanes, id);
    const bool is_twice = is_expert(a, id) && a.wants_distinct && (same & ((1u << lane) - 1)) != 0;
    if (id < -1 || id >= a.ownership.num_experts || is_twice) {
      give_up(a.watch, WaitFailure::kInvalidId,
              {WaitPlace::kInput, a.rank, static_cast<std::int32_t>(token), next_call(a.state)},
              lane, id, 0);
    }
    if (!is_choice) continue;
    const std::int32_t kept = is_expert(a, id) ? id : -1;
    a.own_ids[at] = kept;
    if (a.own_rows == nullptr) continue;
    const float weight = a.topk_weights == nullptr ? 1.0f : a.topk_weights[at];
    std::uint32_t* row = a.own_rows + token * 2 * a.num_topk;
    row[lane] = static_cast<std::uint32_t>(kept);
    row[a.num_topk + lane] = bits_from_f32(weight);
  }
}

__global__ void __launch_bounds__(kRoutingThreads) place_rows_kernel(RoutingArgs a) {
  const std::int64_t num_filled = std::int64_t{*a.num_rows} * a.num_topk;
  const std::int64_t num_choices = std::int64_t{a.num_buffer_rows} * a.num_topk;
  const std::int32_t first = a.ownership.first(a.rank);
  for (std::int64_t i = thread_number(); i < num_choices; i += num_threads()) {
    const std::int64_t row = i / a.num_topk;
    const int k = static_cast<int>(i - row * a.num_topk);
    const bool is_filled = i < num_filled;
    const std::int32_t id = is_filled ? id_of(a, row, k) : -1;
    a.row_ids[i] = id;
    if (a.row_weights != nullptr) a.row_weights[i] = is_filled ? weight_of(a, row, k) : 0.0f;
    const std::int32_t local = id - first;
    if (local >= 0 && local < a.num_local) atomicAdd(a.num_rows_of_expert + local, 1);
  }
}

// The rank that holds this lane's choice of a row; -1: none.
__device__ __forceinline__ std::int32_t rank_of_choice(const RoutingArgs& a, std::int64_t row,
                                                       int lane) {
  const std::int32_t id = lane < a.num_topk ? a.row_ids[row * a.num_topk + lane] : -1;
  return is_expert(a, id) ? a.ownership.owner(id) : -1;
}

// One warp lists what this rank returns to one source. Rows whose token chose no expert here are
// left out, unless experts are sliced.
__device__ void keep_arrivals(const RoutingArgs& a, int source, std::int64_t first_row, int lane) {
  const int num_ranks = a.ownership.num_ranks;
  const std::int32_t count = a.num_from[source];
  const std::int32_t first_local = a.ownership.first(a.rank);
  std::int32_t kept = 0;
  for (std::int32_t base = 0; base < count; base += kLanes) {
    const std::int32_t slot = base + lane;
    bool is_kept = a.ownership.is_sliced && slot < count;
    for (int k = 0; slot < count && k < a.num_topk; ++k) {
      const std::int32_t local = a.row_ids[(first_row + slot) * a.num_topk + k] - first_local;
      is_kept |= local >= 0 && local < a.num_local;
    }
    const unsigned votes = __ballot_sync(kAllLanes, is_kept);
    if (is_kept) {
      const std::int32_t to = kept + __popc(votes & ((1u << lane) - 1));
      const std::int64_t arrival = std::int64_t{source} * a.max_tokens + to;
      a.state.arrival_token[arrival] = slot;  // every token has arrived, in order
      a.state.arrival_rows[arrival * num_ranks + a.rank] =
          static_cast<std::int32_t>(first_row) + slot;
    }
    kept += __popc(votes);
  }
  if (lane == 0) a.state.num_arrivals[source] = kept;
}

// One warp lists the partial sums of a token: those of `returned_by` that it chose, or all of these
// where experts are sliced, in rank order.
__device__ void keep_ranks(const RoutingArgs& a, std::int64_t token, std::int64_t row, int lane,
                           std::uint64_t returned_by) {
  const int num_ranks = a.ownership.num_ranks;
  const std::int32_t mine = rank_of_choice(a, row, lane);
  bool is_chosen = a.ownership.is_sliced && lane < num_ranks;
  for (int k = 0; k < a.num_topk; ++k) is_chosen |= __shfl_sync(kAllLanes, mine, k) == lane;
  is_chosen = is_chosen && (returned_by >> lane & 1) != 0;
  const unsigned ranks = __ballot_sync(kAllLanes, is_chosen);
  if (lane == 0) a.state.num_partials[token] = __popc(ranks);
  if (!is_chosen) return;
  const std::int64_t at = token * num_ranks + __popc(ranks & ((1u << lane) - 1));
  a.state.columns[at] = lane;
  a.state.partial_ranks[at] = lane;
}

__global__ void __launch_bounds__(kRoutingThreads) place_returns_kernel(RoutingArgs a) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const std::int64_t warp = thread_number() / kLanes;
  const std::int64_t own = first_own_row(a);
  if (warp < a.ownership.num_ranks) {
    std::int64_t first = 0;
    for (int s = 0; s < warp; ++s) first += a.num_from[s];
    keep_arrivals(a, static_cast<int>(warp), first, lane);
  }
  for (std::int64_t token = warp; token < a.num_tokens; token += num_threads() / kLanes) {
    keep_ranks(a, token, own + token, lane, ~std::uint64_t{0});
  }
  for (std::int64_t e = thread_number(); e < a.num_local; e += num_threads()) {
    if (a.num_rows_of_expert[e] <= a.capacity) continue;
    give_up(a.watch, WaitFailure::kCapacityExceeded,
            {WaitPlace::kAnnouncement, a.rank, static_cast<std::int32_t>(e), next_call(a.state)},
            static_cast<std::int32_t>(a.capacity), a.num_rows_of_expert[e], 0);
  }
}

__global__ void __launch_bounds__(kRoutingThreads)
    list_returns_kernel(RoutingArgs a, std::uint64_t returned_by) {
  const std::int64_t first = first_own_row(a);
  for (std::int64_t token = thread_number() / kLanes; token < a.num_from[a.rank];
       token += num_threads() / kLanes) {
    keep_ranks(a, token, first + token, static_cast<int>(threadIdx.x) % kLanes, returned_by);
  }
}

}  // namespace

void launch_keep_routing(const RoutingArgs& args, cudaStream_t stream) {
  launch_kernel(keep_routing_kernel, routing_shape(args.num_tokens, kRoutingWarps, stream),
                "dispatch", args);
}

void launch_place_routing(const RoutingArgs& args, cudaStream_t stream) {
  clear_counts(args.num_rows_of_expert, args.num_local, stream);
  launch_kernel(
      place_rows_kernel,
      routing_shape(std::int64_t{args.num_buffer_rows} * args.num_topk, kRoutingThreads, stream),
      "dispatch", args);
  const std::int64_t num_warps = std::max(args.num_tokens, args.ownership.num_ranks);
  launch_kernel(place_returns_kernel, routing_shape(num_warps, kRoutingWarps, stream), "dispatch",
                args);
}

void launch_list_returns(const RoutingArgs& args, std::uint64_t ranks, cudaStream_t stream) {
  launch_kernel(list_returns_kernel, routing_shape(args.max_tokens, kRoutingWarps, stream),
                "dispatch", args, ranks);
}

void run_routing_kernels(const RoutingArgs& args, bool drops, bool places, cudaStream_t stream) {
  launch_keep_routing(args, stream);
  if (drops) launch_drop_overflow(args, stream);
  if (places) launch_place_routing(args, stream);
}

}  // namespace switchyard::cuda
