// SPDX-License-Identifier: Apache-2.0

#include "cuda/base/check.h"
#include "stress_kernels.h"

namespace switchyard::test {
namespace {

constexpr int kThreads = 512;
constexpr int kWarp = 32;
constexpr int kWarps = kThreads / kWarp;
constexpr unsigned kAll = 0xFFFFFFFFu;

__device__ int lane_id() { return static_cast<int>(threadIdx.x) % kWarp; }
__device__ int warp_id() { return static_cast<int>(threadIdx.x) / kWarp; }
__device__ std::uint32_t number_of(const StressStep& step) {
  return *const_cast<const volatile std::uint32_t*>(step.base) + step.offset;
}

// ---- expected rows

__device__ int sum_of_warp(int value) { return __reduce_add_sync(kAll, value); }

/// Rows are counted per (group, source, 32 tokens) and listed in that order. A group is a local
/// expert; the last group stands for all experts, with one row per token.
struct Units {
  int chunks;  ///< per source
  int num;     ///< over all sources

  SWITCHYARD_HOST_DEVICE explicit Units(const StressShape& s)
      : chunks(stress_chunks(s)), num(s.num_ranks * chunks) {}
};

/// The CTA that counts a few units also lists them; many units have a list kernel.
SWITCHYARD_HOST_DEVICE bool is_planned_by_make(const StressShape& s) {
  return Units(s).num <= 2 * kWarps;
}

/// What the token of a lane chose on this rank.
struct LaneChoices {
  int source;
  int token;
  int local[kMaxStressTopk];  ///< local expert of each choice; -1: none, or on another rank
  bool is_any = false;

  __device__ LaneChoices(const StressShape& s, std::uint32_t step, std::uint32_t slot, int unit,
                         const Units& units)
      : source(unit / units.chunks), token(unit % units.chunks * kWarp + lane_id()) {
    const bool is_token = token < stress_tokens(s, slot, source);
#pragma unroll
    for (int k = 0; k < kMaxStressTopk; ++k) {
      const int id = is_token && k < s.num_topk ? stress_id(s, step, source, token, k) : -1;
      const int expert = id - s.rank * s.num_local;
      const bool is_here = id >= 0 && expert >= 0 && expert < s.num_local;
      local[k] = is_here ? expert : -1;
      is_any = is_any || is_here;
    }
  }
  /// Returns bits indexed by k; for the group of all experts only bit 0.
  __device__ std::uint32_t of_group(const StressShape& s, int group) const {
    if (group == s.num_local) return is_any ? 1 : 0;
    std::uint32_t choices = 0;
#pragma unroll
    for (int k = 0; k < kMaxStressTopk; ++k) choices |= local[k] == group ? 1u << k : 0u;
    return choices;
  }
};

__device__ void count_unit(const StressShape& s, std::uint32_t step, std::uint32_t slot, int unit,
                           const Units& units, int* counts) {
  const LaneChoices choices(s, step, slot, unit, units);
  for (int group = 0; group <= s.num_local; ++group) {
    const int count = sum_of_warp(__popc(choices.of_group(s, group)));
    if (lane_id() == 0) counts[group * units.num + unit] = count;
  }
}

/// Sum of counts[begin, end), computed by a warp.
__device__ int sum_of_counts(const int* counts, int begin, int end) {
  int sum = 0;
#pragma unroll 4
  for (int i = begin + lane_id(); i < end; i += kWarp) sum += counts[i];
  return sum_of_warp(sum);
}

/// Lists the rows of a unit in order of tokens and choices.
__device__ void list_unit(const StressShape& s, std::uint32_t step, std::uint32_t slot, int unit,
                          const Units& units, const StressPlan& plan) {
  const LaneChoices own(s, step, slot, unit, units);
  const int first_group = s.is_token_major() ? s.num_local : 0;
  const int end_group = s.is_token_major() ? s.num_local + 1 : s.num_local;
  int before_group = 0;
  for (int group = first_group; group < end_group; ++group) {
    const int begin = group * units.num;
    const int in_group = sum_of_counts(plan.counts, begin, begin + unit);
    const int after = sum_of_counts(plan.counts, begin + unit, begin + units.num);
    std::uint32_t choices = own.of_group(s, group);
    int n = in_group;
    for (int other = 0, count = __popc(choices); other < kWarp; ++other) {
      const int theirs = __shfl_sync(kAll, count, other);
      if (other < lane_id()) n += theirs;
    }
    const std::int64_t first = s.layout == Layout::kBatched ? group * plan.capacity : before_group;
    for (; choices != 0; ++n, choices &= choices - 1) {
      const int k = s.is_token_major() ? -1 : __ffs(static_cast<int>(choices)) - 1;
      plan.rows[before_group + n] = {static_cast<std::int32_t>(first) + n, own.source, own.token,
                                     k};
    }
    before_group += in_group + after;
  }
}

/// Runs on one CTA.
__device__ void sum_up(const StressShape& s, const Units& units, const StressPlan& plan) {
  for (int e = warp_id(); e <= s.num_local; e += kWarps) {
    const int begin = e * units.num;
    const int count = sum_of_counts(plan.counts, begin, begin + units.num);
    const int before = sum_of_counts(plan.counts, 0, begin);
    if (lane_id() != 0) continue;
    if (e == s.num_local) {
      *plan.total = s.is_token_major() ? count : before;
    } else {
      plan.num_rows[e] = count;
      plan.first_row[e] = s.layout == Layout::kBatched ? e * plan.capacity : before;
    }
  }
}

__global__ void __launch_bounds__(kThreads, 2)
    list_kernel(StressShape s, StressStep step, StressPlan plan) {
  const Units units(s);
  if (blockIdx.x == 0) sum_up(s, units, plan);
  const int num_warps = static_cast<int>(gridDim.x) * kWarps;
  for (int unit = warp_id() * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x);
       unit < units.num; unit += num_warps) {
    list_unit(s, number_of(step), step.slot, unit, units, plan);
  }
}

// ---- inputs

__device__ void fill_token(const StressShape& s, std::uint32_t step, int token,
                           const StressInput& input) {
  const std::uint32_t key = step_key(s, step, StressSalt::kWords);
  const int num_words = s.token_bytes() / 4;
  std::uint32_t* words = input.tokens + std::int64_t{token} * num_words;
  for (int w = lane_id(); w < num_words; w += kWarp) {
    words[w] = stress_word(s, key, step, s.rank, token, static_cast<std::uint32_t>(w), false);
  }
  const int output_words = s.hidden * (s.outputs_f32 ? 4 : 2) / 4;
  auto* output =
      reinterpret_cast<std::uint32_t*>(input.output) + std::int64_t{token} * output_words;
  for (int w = lane_id(); w < output_words; w += kWarp) output[w] = 0xFFFFFFFFu;
  for (int i = lane_id(); i < s.num_scales(); i += kWarp) {
    const std::uint32_t scale = stress_scale(s, step, s.rank, token, i);
    const std::int64_t at = std::int64_t{token} * s.num_scales() + i;
    if (s.scale_bytes() == 4) {
      reinterpret_cast<std::uint32_t*>(input.scales)[at] = scale;
    } else {
      input.scales[at] = static_cast<std::byte>(scale);
    }
  }
  for (int k = lane_id(); k < s.num_topk; k += kWarp) {
    const std::int64_t at = std::int64_t{token} * s.num_topk + k;
    const int id = stress_id(s, step, s.rank, token, k);
    if (s.ids_are_64_bits) {
      reinterpret_cast<std::int64_t*>(input.ids)[at] = id;
    } else {
      reinterpret_cast<std::int32_t*>(input.ids)[at] = id;
    }
    input.weights[at] = stress_weight(s, step, s.rank, token, k);
  }
}

__global__ void __launch_bounds__(kThreads, 2)
    make_kernel(StressShape s, StressStep step, StressInput input, StressPlan plan) {
  const std::uint32_t number = number_of(step);
  const Units units(s);
  if (is_planned_by_make(s) && blockIdx.x == 0) {
    for (int i = warp_id(); i < units.num; i += kWarps) {
      count_unit(s, number, step.slot, i, units, plan.counts);
    }
    __syncthreads();
    for (int i = warp_id(); i < units.num; i += kWarps) {
      list_unit(s, number, step.slot, i, units, plan);
    }
    sum_up(s, units, plan);
    return;
  }
  const int num_warps = (static_cast<int>(gridDim.x) - 1) * kWarps;
  const int first = (static_cast<int>(blockIdx.x) - 1) * kWarps + warp_id();
  if (first < 0) return;
  if (!is_planned_by_make(s)) {
    for (int i = first; i < units.num; i += num_warps) {
      count_unit(s, number, step.slot, i, units, plan.counts);
    }
  }
  const int num_tokens = stress_tokens(s, step.slot, s.rank);
  for (int t = first; t < num_tokens; t += num_warps) fill_token(s, number, t, input);
}

// ---- received rows

/// Counts of one thread, added up at the end.
struct Count {
  StressTally* tally;
  std::uint32_t step;
  unsigned bytes = 0;
  unsigned wrong = 0;

  __device__ void compare(StressPart part, std::uint32_t want, std::uint32_t got, int num_bytes,
                          const StressRow& row, int word) {
    bytes += static_cast<unsigned>(num_bytes);
    if (want == got) return;
    for (std::uint32_t bits = want ^ got; bits != 0; bits >>= 8) wrong += (bits & 0xFF) != 0;
    if (atomicExch(&tally->has_difference, 1u) != 0) return;
    tally->difference = {
        static_cast<std::uint32_t>(part), step, row.row, row.source, row.token, word, want, got};
  }

  /// Call this with whole warps. `rows` is this thread's contribution to `counter`.
  __device__ void add(unsigned rows, unsigned long long* counter) {
    const unsigned all_bytes = __reduce_add_sync(kAll, bytes);
    const unsigned all_wrong = __reduce_add_sync(kAll, wrong);
    const unsigned all_rows = __reduce_add_sync(kAll, rows);
    if (lane_id() != 0) return;
    atomicAdd(&tally->num_bytes, static_cast<unsigned long long>(all_bytes));
    atomicAdd(counter, static_cast<unsigned long long>(all_rows));
    if (all_wrong != 0) atomicAdd(&tally->num_wrong, static_cast<unsigned long long>(all_wrong));
  }
};

__device__ void check_counts(const StressShape& s, const StressPlan& plan,
                             const StressReceived& got, Count& count) {
  for (int e = warp_id() * kWarp + lane_id(); e < s.num_local; e += kThreads) {
    const StressRow none{-1, -1, -1, -1};
    count.compare(StressPart::kCount, static_cast<std::uint32_t>(plan.num_rows[e]),
                  static_cast<std::uint32_t>(got.num_rows[e]), 4, none, e);
    if (got.first_row == nullptr) continue;
    count.compare(StressPart::kCount, static_cast<std::uint32_t>(plan.first_row[e]),
                  static_cast<std::uint32_t>(got.first_row[e]), 8, none, s.num_local + e);
  }
  if (threadIdx.x != 0) return;
  count.compare(StressPart::kCount, static_cast<std::uint32_t>(*plan.total),
                static_cast<std::uint32_t>(*got.total_rows), 4, {-1, -1, -1, -1}, -1);
}

__device__ void check_routing(const StressShape& s, const StressRow& row, const StressReceived& got,
                              Count& count) {
  if (!s.is_token_major()) {
    if (lane_id() != 0) return;
    const float want = stress_weight(s, count.step, row.source, row.token, row.k);
    count.compare(StressPart::kWeight, __float_as_uint(want), __float_as_uint(got.weights[row.row]),
                  4, row, row.k);
    return;
  }
  for (int k = lane_id(); k < s.num_topk; k += kWarp) {
    const std::int64_t at = std::int64_t{row.row} * s.num_topk + k;
    const int want = stress_row_id(s, count.step, row.source, row.token, k);
    count.compare(StressPart::kId, static_cast<std::uint32_t>(want),
                  static_cast<std::uint32_t>(got.ids[at]), 4, row, k);
    const float weight = stress_weight(s, count.step, row.source, row.token, k);
    count.compare(StressPart::kWeight, __float_as_uint(weight), __float_as_uint(got.weights[at]), 4,
                  row, k);
  }
}

__device__ void check_row(const StressShape& s, const StressRow& row, const StressReceived& got,
                          Count& count) {
  const std::uint32_t key = step_key(s, count.step, StressSalt::kWords);
  const int num_words = s.row_bytes() / 4;
  const auto* words =
      reinterpret_cast<const std::uint32_t*>(got.rows + std::int64_t{row.row} * s.row_bytes());
#pragma unroll 4
  for (int w = lane_id(); w < num_words; w += kWarp) {
    const std::uint32_t want =
        stress_word(s, key, count.step, row.source, row.token, static_cast<std::uint32_t>(w), true);
    count.compare(StressPart::kElement, want, words[w], 4, row, w);
  }
  for (int i = lane_id(); i < s.num_scales(); i += kWarp) {
    const std::int64_t at = std::int64_t{row.row} * s.num_scales() + i;
    const std::uint32_t is = s.scale_bytes() == 4
                                 ? reinterpret_cast<const std::uint32_t*>(got.scales)[at]
                                 : static_cast<std::uint32_t>(got.scales[at]);
    count.compare(StressPart::kScale, stress_scale(s, count.step, row.source, row.token, i), is,
                  s.scale_bytes(), row, i);
  }
  check_routing(s, row, got, count);
}

__device__ void write_result(const StressShape& s, std::uint32_t step, const StressRow& row,
                             std::uint16_t* results) {
  const std::uint32_t key = step_key(s, step, StressSalt::kResults);
  auto* to = reinterpret_cast<uint2*>(results + std::int64_t{row.row} * s.hidden);
  const int k = row.k < 0 ? s.rank : row.k;
  for (int four = lane_id(); four < s.hidden / 4; four += kWarp) {
    const std::uint32_t h =
        four_results(key, row.source, row.token, k, static_cast<std::uint32_t>(four));
    std::uint32_t bf16[4];
    for (std::uint32_t i = 0; i < 4; ++i) {
      bf16[i] = __float_as_uint(static_cast<float>(result_of(h, i))) >> 16;
    }
    to[four] = {bf16[0] | bf16[1] << 16, bf16[2] | bf16[3] << 16};
  }
}

__global__ void __launch_bounds__(kThreads, 2)
    check_rows_kernel(StressShape s, StressStep step, StressPlan plan, StressReceived got,
                      std::uint16_t* results, StressTally* tally) {
  Count count{tally, number_of(step)};
  if (blockIdx.x == 0) check_counts(s, plan, got, count);
  const int total = *plan.total;
  const int num_warps = static_cast<int>(gridDim.x) * kWarps;
  unsigned rows = 0;
  for (int n = static_cast<int>(blockIdx.x) * kWarps + warp_id(); n < total; n += num_warps) {
    const StressRow row = plan.rows[n];
    check_row(s, row, got, count);
    write_result(s, count.step, row, results);
    rows += lane_id() == 0 ? 1 : 0;
  }
  __syncwarp();
  count.add(rows, &tally->num_rows);
}

// ---- outputs

/// The expected values of four elements of an own token's output.
struct WantedSum {
  int of[4] = {0, 0, 0, 0};

  __device__ void add(std::uint32_t four, int weight) {
    for (std::uint32_t i = 0; i < 4; ++i) of[i] += weight * result_of(four, i);
  }
};

/// Returns the choices that name an expert as bits; in token-major layouts the ranks they name.
__device__ std::uint32_t terms_of(const StressShape& s, std::uint32_t step, int token) {
  std::uint32_t partials = 0;
  for (int k = 0; k < s.num_topk; ++k) {
    const int id = stress_id(s, step, s.rank, token, k);
    if (id >= 0) partials |= 1u << (s.is_token_major() ? id / s.num_local : k);
  }
  return partials;
}

__device__ void check_token(const StressShape& s, int token, const std::byte* output,
                            Count& count) {
  const std::uint32_t key = step_key(s, count.step, StressSalt::kResults);
  const std::uint32_t partials = terms_of(s, count.step, token);
  const StressRow row{token, s.rank, token, -1};
  for (int four = lane_id(); four < s.hidden / 4; four += kWarp) {
    WantedSum sum;
    for (std::uint32_t left = partials; left != 0; left &= left - 1) {
      const int k = __ffs(static_cast<int>(left)) - 1;
      const float weight =
          s.is_token_major() ? 1.0f : stress_weight(s, count.step, s.rank, token, k);
      sum.add(four_results(key, s.rank, token, k, static_cast<std::uint32_t>(four)),
              static_cast<int>(weight));
    }
    const std::int64_t at = std::int64_t{token} * s.hidden + 4 * four;
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t want = __float_as_uint(static_cast<float>(sum.of[i]));
      if (s.outputs_f32) {
        count.compare(StressPart::kOutput, want,
                      reinterpret_cast<const std::uint32_t*>(output)[at + i], 4, row, 4 * four + i);
      } else {
        count.compare(StressPart::kOutput, want >> 16,
                      reinterpret_cast<const std::uint16_t*>(output)[at + i], 2, row, 4 * four + i);
      }
    }
  }
}

__global__ void __launch_bounds__(kThreads, 2)
    check_output_kernel(StressShape s, StressStep step, const std::byte* output,
                        StressTally* tally) {
  Count count{tally, number_of(step)};
  const int num_tokens = stress_tokens(s, step.slot, s.rank);
  const int num_warps = static_cast<int>(gridDim.x) * kWarps;
  unsigned rows = 0;
  for (int t = static_cast<int>(blockIdx.x) * kWarps + warp_id(); t < num_tokens; t += num_warps) {
    check_token(s, t, output, count);
    rows += lane_id() == 0 ? 1 : 0;
  }
  __syncwarp();
  count.add(rows, &tally->num_outputs);
}

// ---- faults

__device__ bool is_spoiled(const StressStep& step) { return number_of(step) % 7 == 3; }

__device__ void spoil(std::byte* at, StressTally* tally) {
  *at ^= std::byte{0x10};
  atomicAdd(&tally->num_injected, 1ull);
}

__global__ void spoil_row_kernel(StressShape s, StressStep step, StressPlan plan,
                                 StressReceived got, StressTally* tally) {
  if (!is_spoiled(step) || *plan.total == 0) return;
  const std::int64_t row = plan.rows[*plan.total / 2].row;
  spoil(got.rows + row * s.row_bytes() + s.row_bytes() / 2, tally);
  if (s.num_scales() == 0) return;
  spoil(got.scales + (row * s.num_scales() + s.num_scales() - 1) * s.scale_bytes(), tally);
}

__global__ void spoil_output_kernel(StressShape s, StressStep step, std::byte* output,
                                    StressTally* tally) {
  const int num_tokens = stress_tokens(s, step.slot, s.rank);
  if (!is_spoiled(step) || num_tokens == 0) return;
  const int bytes = s.outputs_f32 ? 4 : 2;
  spoil(output + (std::int64_t{num_tokens} * s.hidden - 1) * bytes, tally);
}

__global__ void advance_kernel(std::uint32_t* base, std::uint32_t count) { *base += count; }

}  // namespace

void load_stress_kernels() {
  for (const void* kernel :
       {reinterpret_cast<const void*>(make_kernel), reinterpret_cast<const void*>(list_kernel),
        reinterpret_cast<const void*>(check_rows_kernel),
        reinterpret_cast<const void*>(check_output_kernel),
        reinterpret_cast<const void*>(spoil_row_kernel),
        reinterpret_cast<const void*>(spoil_output_kernel),
        reinterpret_cast<const void*>(advance_kernel)}) {
    cudaFuncAttributes loaded{};
    cuda::check_cuda(cudaFuncGetAttributes(&loaded, kernel), "exchange_stress");
  }
}

void launch_make(const StressShape& shape, const StressStep& step, const StressInput& input,
                 const StressPlan& plan, const StressLaunch& launch) {
  make_kernel<<<launch.num_ctas, kThreads, 0, launch.stream>>>(shape, step, input, plan);
  if (!is_planned_by_make(shape)) {
    list_kernel<<<launch.num_ctas, kThreads, 0, launch.stream>>>(shape, step, plan);
  }
}

void launch_check_rows(const StressShape& shape, const StressStep& step, const StressPlan& plan,
                       const StressReceived& received, std::uint16_t* results, StressTally* tally,
                       const StressLaunch& launch) {
  check_rows_kernel<<<launch.num_ctas, kThreads, 0, launch.stream>>>(shape, step, plan, received,
                                                                     results, tally);
}

void launch_check_output(const StressShape& shape, const StressStep& step, const std::byte* output,
                         StressTally* tally, const StressLaunch& launch) {
  check_output_kernel<<<launch.num_ctas, kThreads, 0, launch.stream>>>(shape, step, output, tally);
}

void launch_spoil_row(const StressShape& shape, const StressStep& step, const StressPlan& plan,
                      const StressReceived& received, StressTally* tally, cudaStream_t stream) {
  spoil_row_kernel<<<1, 1, 0, stream>>>(shape, step, plan, received, tally);
}

void launch_spoil_output(const StressShape& shape, const StressStep& step, std::byte* output,
                         StressTally* tally, cudaStream_t stream) {
  spoil_output_kernel<<<1, 1, 0, stream>>>(shape, step, output, tally);
}

void launch_advance(std::uint32_t* base, std::uint32_t count, cudaStream_t stream) {
  advance_kernel<<<1, 1, 0, stream>>>(base, count);
}

}  // namespace switchyard::test
