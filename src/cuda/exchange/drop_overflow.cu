// SPDX-License-Identifier: Apache-2.0
//
// drop_overflow.cu: finds which choices of all ranks exceed an expert's capacity. Choices are
// sorted by expert and weight; a choice does not fit if the one `capacity` places before it has the
// same expert. CUB's radix sort is stable, so ties keep the order of rows.
//
// The cost does not depend on the routing: the maximum number of choices is sorted, in passes of 8
// bits: 5 with up to 256 experts, else 6. Every call runs the same kernels, as a captured graph
// requires.

#include "cuda/exchange/overflow_key.h"
#include "cuda/exchange/routing_rows.cuh"

#include <cub/device/device_radix_sort.cuh>

namespace switchyard::cuda {
namespace {

constexpr std::uint32_t kNoChoice = 0xFFFFFFFFu;  // id -1

__global__ void __launch_bounds__(kRoutingThreads) write_keys_kernel(RoutingArgs a) {
  const std::int64_t num_filled = std::int64_t{*a.num_rows} * a.num_topk;
  for (std::int64_t i = thread_number(); i < a.max_choices(); i += num_threads()) {
    const std::int64_t row = i / a.num_topk;
    const int k = static_cast<int>(i - row * a.num_topk);
    const std::int32_t id = i < num_filled ? id_of(a, row, k) : -1;
    a.sort.keys[i] = is_expert(a, id) ? overflow_key(id, weight_of(a, row, k)) : kNoChoiceKey;
    a.sort.choices[i] = static_cast<std::uint32_t>(i);
  }
}

// One thread per place in the sorted order.
__global__ void __launch_bounds__(kRoutingThreads)
    drop_choices_kernel(RoutingArgs a, const std::uint64_t* keys, const std::uint32_t* choices) {
  const std::int64_t num_filled = std::int64_t{*a.num_rows} * a.num_topk;
  for (std::int64_t at = a.capacity + thread_number(); at < num_filled; at += num_threads()) {
    const std::uint64_t key = keys[at];
    if (key == kNoChoiceKey) return;  // and so are all that follow
    if (expert_of_key(key) != expert_of_key(keys[at - a.capacity])) continue;
    const std::int64_t choice = choices[at];
    const std::int64_t row = choice / a.num_topk;
    a.rows[row * a.num_topk + choice] = kNoChoice;  // of rows of 2 K words
    const std::int64_t own = choice - first_own_row(a) * a.num_topk;
    if (own < 0 || own >= std::int64_t{a.num_tokens} * a.num_topk) continue;
    a.own_ids[own] = -1;
    atomicAdd(a.num_dropped, 1);
  }
}

// With a null `work`, only computes work_bytes. The two halves of keys and choices swap after each
// pass.
void sort(void* work, std::size_t& work_bytes, cub::DoubleBuffer<std::uint64_t>& keys,
          cub::DoubleBuffer<std::uint32_t>& choices, std::int64_t count, std::int32_t num_experts,
          cudaStream_t stream) {
  check_cuda(cub::DeviceRadixSort::SortPairs(work, work_bytes, keys, choices, count, 0,
                                             overflow_key_bits(num_experts), stream),
             "dispatch");
}

}  // namespace

std::size_t sort_work_bytes(std::int64_t max_choices, std::int32_t num_experts) {
  cub::DoubleBuffer<std::uint64_t> keys;
  cub::DoubleBuffer<std::uint32_t> choices;
  std::size_t bytes = 0;
  sort(nullptr, bytes, keys, choices, max_choices, num_experts, nullptr);
  return bytes;
}

void launch_drop_overflow(const RoutingArgs& args, cudaStream_t stream) {
  const std::int64_t count = args.max_choices();
  clear_counts(args.num_dropped, 1, stream);
  launch_kernel(write_keys_kernel, routing_shape(count, kRoutingThreads, stream), "dispatch", args);
  cub::DoubleBuffer<std::uint64_t> keys(args.sort.keys, args.sort.keys + count);
  cub::DoubleBuffer<std::uint32_t> choices(args.sort.choices, args.sort.choices + count);
  std::size_t work_bytes = args.sort.work_bytes;
  sort(args.sort.work, work_bytes, keys, choices, count, args.ownership.num_experts, stream);
  if (args.capacity >= count) return;
  launch_kernel(drop_choices_kernel, routing_shape(count, kRoutingThreads, stream), "dispatch",
                args, static_cast<const std::uint64_t*>(keys.Current()),
                static_cast<const std::uint32_t*>(choices.Current()));
}

}  // namespace switchyard::cuda
