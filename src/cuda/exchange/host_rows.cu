// SPDX-License-Identifier: Apache-2.0

#include <algorithm>

#include "cuda/base/launch.h"
#include "cuda/exchange/call.cuh"
#include "cuda/exchange/given_id.cuh"
#include "cuda/exchange/host_rows.h"
#include "cuda/exchange/wire.cuh"
#include "cuda/exchange/wire_form.h"

namespace switchyard::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kLanes;
constexpr int kNumberThreads = 512;
constexpr std::int64_t kMaxCtas = 1024;

LaunchShape shape_of(std::int64_t num_items, int items_per_cta, cudaStream_t stream,
                     std::int64_t max_ctas = kMaxCtas, int num_threads = kThreads) {
  const std::int64_t ctas = (num_items + items_per_cta - 1) / items_per_cta;
  return {static_cast<int>(std::clamp<std::int64_t>(ctas, 1, max_ctas)), num_threads, 0, false,
          stream};
}

__device__ __forceinline__ std::int64_t thread_number() {
  return std::int64_t{blockIdx.x} * cta_threads() + threadIdx.x;
}
__device__ __forceinline__ std::int64_t num_threads() {
  return std::int64_t{gridDim.x} * cta_threads();
}

__device__ __forceinline__ bool has_failed(const Watch& watch) {
  return *const_cast<const volatile std::uint32_t*>(watch.failed) != 0;
}

// The place in message `m` of what is at `at` in the first one.
template <typename T>
__device__ __forceinline__ T* in_message(T* at, const Messages& messages, int m) {
  auto* const byte = reinterpret_cast<std::byte*>(at);
  return reinterpret_cast<T*>(byte + static_cast<std::size_t>(m) * messages.stride);
}

// A CTA per list, which runs over its tokens.
__global__ void __launch_bounds__(kNumberThreads)
    number_rows_kernel(const __grid_constant__ NumberRowsArgs a) {
  __shared__ int shared[kNumberThreads / kLanes];
  if (static_cast<int>(blockIdx.x) >= a.num_lists) return;
  if (__syncthreads_or(static_cast<int>(has_failed(a.watch))) != 0) return;
  const NumberedTokens& list = a.lists[blockIdx.x];
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  int num_before = 0;  // tokens of earlier rounds
  for (int first = 0; first < a.num_tokens; first += kNumberThreads) {
    const int token = first + static_cast<int>(threadIdx.x);
    bool goes = false;
    for (int k = 0; k < a.num_topk && token < a.num_tokens; ++k) {
      GivenId given;
      given.request(list.ids, std::int64_t{token} * a.num_topk + k);
      const std::int32_t id = given.value(list.ids);
      if (id < 0 || id >= a.ownership.num_experts) continue;
      goes |= (list.ranks >> a.ownership.owner(id) & 1) != 0;
    }
    const unsigned going = __ballot_sync(kAllLanes, goes);
    if (lane == 0) shared[warp] = __popc(going);
    __syncthreads();
    int number = num_before + __popc(going & ((1u << lane) - 1));
    for (int w = 0; w < kNumberThreads / kLanes; ++w) {
      number += w < warp ? shared[w] : 0;
      num_before += shared[w];
    }
    if (token < a.num_tokens) {
      list.numbers[token] = goes && number < a.capacity ? number : -1;
    }
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  if (num_before > a.capacity) {
    give_up(a.watch, WaitFailure::kHostCapacityExceeded,
            {WaitPlace::kInput, list.source, list.host, next_call(a.state)}, a.capacity, num_before,
            0);
  }
  const auto count = static_cast<std::uint32_t>(min(num_before, a.capacity));
  if (list.count != nullptr) *list.count = count;
  if (list.pinned_count != nullptr) {
    *const_cast<volatile std::uint32_t*>(list.pinned_count) = count;
  }
  __threadfence_system();
}

__global__ void __launch_bounds__(kThreads) pack_ids_kernel(PackIdsArgs a) {
  if (thread_number() < a.messages.count && a.to_mode != nullptr) {
    *in_message(a.to_mode, a.messages, static_cast<int>(thread_number())) = a.mode;
  }
  const std::int64_t num_given = std::int64_t{a.num_tokens} * a.num_topk;
  const std::int64_t num_choices = std::int64_t{a.max_tokens} * a.num_topk;
  for (std::int64_t i = thread_number(); i < num_choices; i += num_threads()) {
    GivenId given;
    if (i < num_given) given.request(a.ids, i);
    const std::int32_t value = given.value(a.ids);
    const std::int32_t id = value >= 0 && value < a.num_experts ? value : -1;
    const bool is_weighted = a.to_weights != nullptr && i < num_given && a.topk_weights != nullptr;
    const float weight = is_weighted ? a.topk_weights[i] : 1.0f;
    for (int m = 0; m < a.messages.count; ++m) {
      in_message(a.to_ids, a.messages, m)[i] = id;
      if (a.to_weights != nullptr) in_message(a.to_weights, a.messages, m)[i] = weight;
    }
  }
}

/// What a lane holds of a chunk of a returned row, in units that lie one warp of units apart.
template <int kWords, int kCount>
struct ReturnUnits {
  static constexpr int kUnitWords = kWords;
  static constexpr int kUnits = kCount;
  static constexpr int kUnitSize = kWords * 4;
};

/// Calls take(offset in the chunk) for each unit of this lane. Codes are followed by the scales of
/// the chunk, in units of the same size.
template <class Units, typename Take>
__device__ __forceinline__ bool visit_units(const ReturnedRowsArgs& a, int chunk, int lane,
                                            const Take& take) {
  bool is_good = true;
  if (chunk * kReturnChunkElements + lane * kReturnVecElements < a.layout.shape.hidden) {
#pragma unroll
    for (int u = 0; u < Units::kUnits; ++u) is_good &= take((u * kLanes + lane) * Units::kUnitSize);
  }
  if constexpr (Units::kUnitWords == 2) {  // codes of a byte each
    const int num_units = kReturnChunkElements / a.wire.block * 4 / Units::kUnitSize;
    if (lane < num_units) is_good &= take(kReturnChunkElements + lane * Units::kUnitSize);
  }
  return is_good;
}

/// One warp per chunk of a token's rows: calls visit(row of the message, chunk's offset in a row,
/// its place in the window, who returns it).
template <typename Visit>
__device__ __forceinline__ void visit_chunks(const ReturnedRowsArgs& a, const Visit& visit) {
  const int num_chunks = a.layout.num_return_chunks;
  const std::int64_t num_items = std::int64_t{a.num_tokens} * num_chunks;
  for (std::int64_t item = thread_number() / kLanes; item < num_items;
       item += num_threads() / kLanes) {
    const auto token = static_cast<std::int32_t>(item / num_chunks);
    const auto chunk = static_cast<std::int32_t>(item - std::int64_t{token} * num_chunks);
    const std::int32_t number = a.numbers == nullptr ? token : a.numbers[token];
    if (!a.block.has(number)) continue;
    const std::int64_t first = std::int64_t{token} * a.num_topk;
    const std::int32_t num_partials = a.state.num_partials[token];
    int nth = 0;
    for (std::int32_t p = 0; p < num_partials; ++p) {
      const std::int32_t rank = a.state.partial_ranks[first + p];
      if (nth == a.width) break;
      if ((a.ranks >> rank & 1) == 0) continue;
      const std::size_t in_row = static_cast<std::size_t>(chunk) * a.layout.return_chunk_stride;
      const std::int64_t nth_row = std::int64_t{number} * a.width + nth++;
      std::byte* row = a.rows + nth_row * std::int64_t{a.layout.return_stride};
      std::byte* slot = a.window + a.layout.returned(token, a.state.columns[first + p]);
      if (!visit(row + in_row, slot + in_row, chunk,
                 WaitFor{WaitPlace::kReturnedRow, rank, token, next_call(a.state) - 1})) {
        return;
      }
    }
  }
}

// Unlike the others it waits, so it has the room of kernels that wait
// (exchange/push/kernel_room.h).
template <class Units>
__global__ void __launch_bounds__(kExchangeThreads, kExchangeCtasPerSm)
    collect_rows_kernel(const __grid_constant__ ReturnedRowsArgs a) {
  if (has_failed(a.watch)) return;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  visit_chunks(a, [&](std::byte* to, std::byte* from, int chunk, const WaitFor& what) {
    const bool is_good = visit_units<Units>(a, chunk, lane, [&](int at) {
      std::uint32_t words[Units::kUnitWords];
      Spin spin;
      for (;;) {
        load_relaxed_sys(from + at, words);
        if (has_arrived(words)) break;
        if (!spin.again(a.watch, [&] { return what; })) return false;
      }
      if (!empty_unit(
              a.window, from + at, a.layout, a.watch, [&] { return what; }, words)) {
        return false;
      }
#pragma unroll
      for (int i = 0; i < Units::kUnitWords; i += 2) {
        *reinterpret_cast<uint2*>(to + at + i * 4) = {words[i], words[i + 1]};
      }
      return true;
    });
    return __all_sync(kAllLanes, is_good) != 0;
  });
}

template <class Units>
__global__ void __launch_bounds__(kExchangeThreads, kExchangeCtasPerSm)
    place_rows_kernel(const __grid_constant__ ReturnedRowsArgs a) {
  if (has_failed(a.watch)) return;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  visit_chunks(a, [&](const std::byte* from, std::byte* to, int chunk, const WaitFor& what) {
    return visit_units<Units>(a, chunk, lane, [&](int at) {
      std::uint32_t words[Units::kUnitWords];
#pragma unroll
      for (int i = 0; i < Units::kUnitWords; i += 2) {
        const uint2 two = *reinterpret_cast<const uint2*>(from + at + i * 4);
        words[i] = two.x, words[i + 1] = two.y;
      }
      SentUnit(words).send(a.window, to + at, a.layout, what.call);
      return true;
    });
  });
}

__global__ void __launch_bounds__(kThreads)
    collect_weights_kernel(const __grid_constant__ CrossingWeightsArgs a) {
  const std::uint64_t call = next_call(a.state) - 1;
  for (std::int64_t i = thread_number(); i < a.num_records; i += num_threads()) {
    reinterpret_cast<std::uint64_t*>(a.message)[i] =
        load_record(a.window + a.slots.flag(call, static_cast<int>(i)));
  }
}

__global__ void __launch_bounds__(kThreads)
    place_weights_kernel(const __grid_constant__ CrossingWeightsArgs a) {
  const std::uint64_t call = next_call(a.state) - 1;
  for (std::int64_t i = thread_number(); i < a.num_records; i += num_threads()) {
    const std::uint64_t record = reinterpret_cast<const std::uint64_t*>(a.message)[i];
    if (static_cast<std::uint32_t>(record >> 32) != tag_of(call)) continue;
    store_relaxed_sys_u64(a.window + a.slots.flag(call, static_cast<int>(i)), record);
  }
}

// One warp per token, one lane per partial sum.
__global__ void __launch_bounds__(kThreads)
    list_groups_kernel(const __grid_constant__ ListGroupsArgs a) {
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  for (std::int64_t token = thread_number() / kLanes; token < a.num_tokens;
       token += num_threads() / kLanes) {
    const std::int64_t first = token * a.num_topk;
    const bool is_partial = lane < a.from.num_partials[token];
    const std::int32_t rank = is_partial ? a.from.partial_ranks[first + lane] : -1;
    int group = -1;
    for (int g = 0; g < a.num_groups && rank >= 0; ++g) {
      if ((a.groups[g] >> rank & 1) != 0) group = g;
    }
    const unsigned same = __match_any_sync(kAllLanes, group);
    const bool is_kept = group >= 0 && (same & ((1u << lane) - 1)) == 0;
    int before = 0;
    for (int other = 0; other < kLanes; ++other) {
      const int theirs = __shfl_sync(kAllLanes, is_kept ? group : a.num_groups, other);
      before += theirs < group ? 1 : 0;
    }
    const unsigned kept = __ballot_sync(kAllLanes, is_kept);
    if (lane == 0) a.to.num_partials[token] = __popc(kept);
    if (!is_kept) continue;
    a.to.columns[first + before] = a.from.columns[first + lane];
    a.to.partial_ranks[first + before] = rank;
  }
}

__device__ __forceinline__ void count_stay(std::uint32_t* word) {
  volatile std::uint32_t* counted = word;
  *counted = *counted + 1;
  __threadfence_system();
}

__global__ void begin_stay_kernel(std::uint32_t* begun) { count_stay(begun); }

__global__ void __launch_bounds__(kMaxPushRanks)
    end_stay_kernel(const __grid_constant__ EndStayArgs a) {
  const auto i = static_cast<int>(threadIdx.x);
  if (i == 0) count_stay(a.ended);
  if (has_failed(a.watch)) return;
  WaitFor what{a.place, a.peer, -1, next_call(a.state)};
  if (a.place == WaitPlace::kReturnedRow) --what.call;
  if (*const_cast<const volatile std::uint32_t*>(a.watch.abort_word) != 0) {
    give_up(a.watch, WaitFailure::kAborted, what, 0, 0, 0);
    return;
  }
  bool is_good = true;
  if (i < a.num_sources) {
    const std::uint32_t mode = a.modes[i][0];
    is_good = mode == a.mode;
    what.peer = a.sources[i];
    if (!is_good) {
      give_up(a.watch, WaitFailure::kDifferentMode, what, static_cast<std::int32_t>(a.mode),
              static_cast<std::int32_t>(mode), 0);
    }
    if (a.counts != nullptr) const_cast<volatile std::uint32_t*>(a.counts)[i] = a.modes[i][1];
  }
  if (a.have_arrived == nullptr) return;
  __threadfence_system();
  if (__syncthreads_and(is_good) != 0 && i == 0) {
    *const_cast<volatile std::uint64_t*>(a.have_arrived) = 1;
  }
}

/// As the units of combine_send.cuh and combine_quantized.cuh.
template <typename Task>
void with_units(const QuantScheme& wire, const Task& task) {
  if (wire.is_quantized()) return task.template operator()<ReturnUnits<2, 1>>();
  if (wire.dtype == DType::kF32) return task.template operator()<ReturnUnits<4, 2>>();
  task.template operator()<ReturnUnits<4, 1>>();
}

std::int64_t num_items(const ReturnedRowsArgs& args) {
  return std::int64_t{args.num_tokens} * args.layout.num_return_chunks;
}

}  // namespace

void launch_number_rows(const NumberRowsArgs& args, cudaStream_t stream) {
  launch_kernel(number_rows_kernel, {std::max(1, args.num_lists), kNumberThreads, 0, false, stream},
                "dispatch", args);
}

void launch_pack_ids(const PackIdsArgs& args, cudaStream_t stream) {
  launch_kernel(pack_ids_kernel,
                shape_of(std::int64_t{args.max_tokens} * args.num_topk, kThreads, stream),
                "dispatch", args);
}

void launch_collect_rows(const ReturnedRowsArgs& args, int max_ctas, cudaStream_t stream) {
  with_units(args.wire, [&]<class Units>() {
    launch_kernel(collect_rows_kernel<Units>,
                  shape_of(num_items(args), kExchangeWarps, stream, max_ctas, kExchangeThreads),
                  "combine", args);
  });
}

void launch_place_rows(const ReturnedRowsArgs& args, int max_ctas, cudaStream_t stream) {
  with_units(args.wire, [&]<class Units>() {
    launch_kernel(place_rows_kernel<Units>,
                  shape_of(num_items(args), kExchangeWarps, stream, max_ctas, kExchangeThreads),
                  "combine", args);
  });
}

void launch_list_groups(const ListGroupsArgs& args, cudaStream_t stream) {
  launch_kernel(list_groups_kernel, shape_of(args.num_tokens, kWarps, stream), "combine", args);
}

void launch_collect_weights(const CrossingWeightsArgs& args, cudaStream_t stream) {
  launch_kernel(collect_weights_kernel, shape_of(args.num_records, kThreads, stream), "combine",
                args);
}

void launch_place_weights(const CrossingWeightsArgs& args, cudaStream_t stream) {
  launch_kernel(place_weights_kernel, shape_of(args.num_records, kThreads, stream), "combine",
                args);
}

void launch_begin_stay(std::uint32_t* begun, cudaStream_t stream) {
  launch_kernel(begin_stay_kernel, {1, 1, 0, false, stream}, "exchange", begun);
}

void launch_end_stay(const EndStayArgs& args, cudaStream_t stream) {
  launch_kernel(end_stay_kernel, {1, kMaxPushRanks, 0, false, stream}, "exchange", args);
}

}  // namespace switchyard::cuda
