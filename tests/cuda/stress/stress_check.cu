// SPDX-License-Identifier: Apache-2.0
//
// Compares what arrived and what came home, and changes bytes that must be found.

#include "cuda/base/check.h"
#include "stress_device.cuh"

namespace switchyard::test {
namespace {

// ---- received rows

/// Counts of one thread, added up at the end.
struct Count {
  StressTally* tally;
  std::uint32_t step;
  StressRouting routing;
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

/// Compares how many choices of this rank's tokens were dropped; by a warp.
__device__ void check_dropped(const StressShape& s, const StressReceived& got, Count& count) {
  const int num_choices = stress_tokens(s, count.routing.slot, s.rank) * s.num_topk;
  int dropped = 0;
  for (int i = lane_id(); i < num_choices; i += kWarp) {
    const int token = i / s.num_topk;
    const int k = i % s.num_topk;
    if (stress_id(s, count.routing.step, s.rank, token, k) < 0) continue;
    dropped += stress_kept_id(s, count.routing, s.rank, token, k) < 0 ? 1 : 0;
  }
  dropped = __reduce_add_sync(kAll, dropped);
  if (lane_id() != 0) return;
  count.compare(StressPart::kCount, static_cast<std::uint32_t>(dropped),
                static_cast<std::uint32_t>(*got.num_dropped), 4, {-1, -1, -1, -1}, -2);
}

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
  if (s.capacity > 0 && warp_id() == 0) check_dropped(s, got, count);
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
    const int want = stress_row_id(s, count.routing, row.source, row.token, k);
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
  for (int w = lane_id(); w < s.payload_words; w += kWarp) {
    const auto word = static_cast<std::uint32_t>(w);
    count.compare(StressPart::kPayload, stress_payload(s, count.step, row.source, row.token, word),
                  got.payload[std::int64_t{row.row} * s.payload_words + w], 4, row, w);
  }
  check_routing(s, row, got, count);
}

__device__ void write_result(const StressShape& s, std::uint32_t step, const StressRow& row,
                             const StressResults& results) {
  const std::uint32_t key = step_key(s, step, StressSalt::kResults);
  auto* to = reinterpret_cast<uint2*>(results.rows + std::int64_t{row.row} * s.hidden);
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
  if (!s.returns_weights) return;
  const int per_row = s.is_token_major() ? s.num_topk : 1;
  for (int i = lane_id(); i < per_row; i += kWarp) {
    results.weights[std::int64_t{row.row} * per_row + i] =
        stress_returned(s, step, row.source, row.token, row.k < 0 ? i : row.k);
  }
}

__global__ void __launch_bounds__(kThreads, 2)
    check_rows_kernel(StressShape s, StressStep step, StressPlan plan, StressReceived got,
                      StressResults results, StressTally* tally) {
  cuda::launch_dependents();  // a kernel launched early may be there while this one writes
  pause(s, step, StressPause::kResults);
  Count count{tally, number_of(step), routing_of(step)};
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

__device__ void check_token(const StressShape& s, int token, const StressOutput& output,
                            Count& count) {
  const std::uint32_t key = step_key(s, count.step, StressSalt::kResults);
  const StressRow row{token, s.rank, token, -1};
  // Bits of the choices that name an expert; in token-major layouts, of the ranks they name.
  const int id =
      lane_id() < s.num_topk ? stress_kept_id(s, count.routing, s.rank, token, lane_id()) : -1;
  const std::uint32_t partials = __reduce_or_sync(
      kAll, id < 0 ? 0u : 1u << (s.is_token_major() ? id / s.num_local : lane_id()));
  if (lane_id() < s.num_topk && output.returned != nullptr) {
    count.compare(StressPart::kReturned,
                  id < 0 ? 0 : stress_returned(s, count.step, s.rank, token, lane_id()),
                  output.returned[token * s.num_topk + lane_id()], 4, row, lane_id());
  }
  for (int four = lane_id(); four < s.hidden / 4; four += kWarp) {
    WantedSum sum;
    for (std::uint32_t left = partials; left != 0; left &= left - 1) {
      const int k = __ffs(static_cast<int>(left)) - 1;
      const bool is_weighted = !s.is_token_major() && !output.is_unweighted;
      const float weight = is_weighted ? stress_weight(s, count.step, s.rank, token, k) : 1.0f;
      sum.add(four_results(key, s.rank, token, k, static_cast<std::uint32_t>(four)),
              static_cast<int>(weight));
    }
    const std::int64_t at = std::int64_t{token} * s.hidden + 4 * four;
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t want = __float_as_uint(static_cast<float>(sum.of[i]));
      if (s.outputs_f32) {
        count.compare(StressPart::kOutput, want,
                      reinterpret_cast<const std::uint32_t*>(output.rows)[at + i], 4, row,
                      4 * four + i);
      } else {
        count.compare(StressPart::kOutput, want >> 16,
                      reinterpret_cast<const std::uint16_t*>(output.rows)[at + i], 2, row,
                      4 * four + i);
      }
    }
  }
}

__global__ void __launch_bounds__(kThreads, 2)
    check_output_kernel(StressShape s, StressStep step, StressOutput output, StressTally* tally) {
  Count count{tally, number_of(step), routing_of(step)};
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
  if (s.payload_words > 0) {
    spoil(reinterpret_cast<std::byte*>(got.payload + row * s.payload_words), tally);
  }
  if (s.num_scales() == 0) return;
  spoil(got.scales + (row * s.num_scales() + s.num_scales() - 1) * s.scale_bytes(), tally);
}

__global__ void spoil_output_kernel(StressShape s, StressStep step, StressOutput output,
                                    StressTally* tally) {
  const int num_tokens = stress_tokens(s, step.slot, s.rank);
  if (!is_spoiled(step) || num_tokens == 0) return;
  const int bytes = s.outputs_f32 ? 4 : 2;
  spoil(output.rows + (std::int64_t{num_tokens} * s.hidden - 1) * bytes, tally);
  if (output.returned == nullptr) return;
  spoil(reinterpret_cast<std::byte*>(output.returned + num_tokens * s.num_topk - 1), tally);
}

}  // namespace

void load_check_kernels() {
  for (const void* kernel : {reinterpret_cast<const void*>(check_rows_kernel),
                             reinterpret_cast<const void*>(check_output_kernel),
                             reinterpret_cast<const void*>(spoil_row_kernel),
                             reinterpret_cast<const void*>(spoil_output_kernel)}) {
    cudaFuncAttributes loaded{};
    cuda::check_cuda(cudaFuncGetAttributes(&loaded, kernel), "exchange_stress");
  }
}

void launch_check_rows(const StressShape& shape, const StressStep& step, const StressPlan& plan,
                       const StressReceived& received, const StressResults& results,
                       StressTally* tally, const StressLaunch& launch) {
  check_rows_kernel<<<launch.num_ctas, kThreads, 0, launch.stream>>>(shape, step, plan, received,
                                                                     results, tally);
}

void launch_check_output(const StressShape& shape, const StressStep& step,
                         const StressOutput& output, StressTally* tally,
                         const StressLaunch& launch) {
  check_output_kernel<<<launch.num_ctas, kThreads, 0, launch.stream>>>(shape, step, output, tally);
}

void launch_spoil_row(const StressShape& shape, const StressStep& step, const StressPlan& plan,
                      const StressReceived& received, StressTally* tally, cudaStream_t stream) {
  spoil_row_kernel<<<1, 1, 0, stream>>>(shape, step, plan, received, tally);
}

void launch_spoil_output(const StressShape& shape, const StressStep& step,
                         const StressOutput& output, StressTally* tally, cudaStream_t stream) {
  spoil_output_kernel<<<1, 1, 0, stream>>>(shape, step, output, tally);
}

}  // namespace switchyard::test
