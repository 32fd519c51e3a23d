// SPDX-License-Identifier: Apache-2.0
//
// reduce_rows.cu: a block locates the rows of a token, then each thread sums its elements over
// them. The loads of 8 rows or, for a token with few rows, of several words of one row are in
// flight together. The fma chain follows the order of choices, and the sum is rounded once. Lanes
// split elements, never partial sums, so the bits match the CPU's.

#include <type_traits>

#include "cuda/base/check.h"
#include "cuda/base/launch.h"
#include "cuda/base/row_words.cuh"
#include "cuda/permute/permute.h"
#include "cuda/permute/row_grid.h"

namespace switchyard::cuda {
namespace {

constexpr int kRowsAtOnce = 8;
constexpr int kWordsAtOnce = 2;  // words of a row loaded together if a token has few rows
constexpr int kFewRows = 2;      // at most this many rows count as few

// The row of a choice, or null if it has none, and its weight.
struct Summand {
  std::byte* row;
  float weight;
};

__device__ float weight_of(const ReduceArgs& args, std::int64_t t, std::int64_t k) {
  return args.weights == nullptr
             ? 1.0f
             : args.weights[t * args.weight_token_stride + k * args.weight_choice_stride];
}

__device__ bool has_expert(const ReduceArgs& args, std::int64_t t, std::int64_t k,
                           std::int32_t* num_errors) {
  const std::int64_t id = args.ids.at(t, k);
  if (id < 0) return false;
  if (!args.lookup.knows(id)) {
    add_error(num_errors);
    return false;
  }
  return args.lookup.local(id) >= 0;
}

__device__ Summand gather_summand(const ReduceArgs& args, std::int64_t t, std::int64_t k,
                                  std::int32_t* num_errors) {
  const float weight = weight_of(args, t, k);  // loaded together with the row number
  if (!has_expert(args, t, k, num_errors)) return {nullptr, 0.0f};
  const std::int64_t row =
      args.inv_perm[t * args.inv_perm_token_stride + k * args.inv_perm_choice_stride];
  if (row < 0 || row >= args.rows.num_rows) {
    add_error(num_errors);
    return {nullptr, 0.0f};
  }
  return {args.rows.row(row), weight};
}

__device__ Summand contiguous_summand(const ReduceArgs& args, std::int64_t t, std::int64_t k,
                                      std::int32_t* num_errors) {
  if (args.skips_padding && !has_expert(args, t, k, num_errors)) return {nullptr, 0.0f};
  return {args.rows.row(t * args.ids.num_topk + k), weight_of(args, t, k)};
}

// The sum of the weights of all choices of the same expert, in f32, k ascending.
__device__ float batched_weight(const ReduceArgs& args, std::int64_t t, std::int64_t id) {
  if (args.weights == nullptr) return 1.0f;
  float sum = 0.0f;
  for (std::int64_t k = 0; k < args.ids.num_topk; ++k) {
    if (args.ids.at(t, k) == id) sum += weight_of(args, t, k);
  }
  return sum;
}

__device__ Summand batched_summand(const ReduceArgs& args, std::int64_t t, std::int64_t k,
                                   std::int32_t* num_errors) {
  const PlacedChoice choice = args.map.choices[t * args.ids.num_topk + k];
  if (choice.place >= args.capacity) {
    add_error(num_errors);
    return {nullptr, 0.0f};
  }
  const std::int64_t row = choice.expert * args.capacity + choice.place;
  return {args.rows.row(row), batched_weight(args, t, args.ids.at(t, k))};
}

// The position of choice k in the order of experts; the map names each expert once per token.
__device__ std::int64_t order_of(const ReduceArgs& args, std::int64_t t, std::int64_t k) {
  const PlacedChoice* choices = args.map.choices + t * args.ids.num_topk;
  std::int64_t order = 0;
  for (std::int64_t other = 0; other < args.ids.num_topk; ++other) {
    order += choices[other].expert >= 0 && choices[other].expert < choices[k].expert;
  }
  return order;
}

// Collects the summands of token t in the order of the sum; absent ones have a null row. Returns
// whether there are few.
__device__ bool collect_summands(const ReduceArgs& args, std::int64_t t, Summand* summands) {
  std::int32_t* num_errors = blockIdx.y == 0 ? args.num_errors : nullptr;  // once per token
  if (args.sum_source == SumSource::kBatched) {
    for (std::int64_t k = threadIdx.x; k < args.ids.num_topk; k += blockDim.x) {
      summands[k] = {nullptr, 0.0f};
    }
    __syncthreads();
  }
  int num_summands = 0;
  const auto set = [&](std::int64_t at, const Summand& summand) {
    summands[at] = summand;
    num_summands += summand.row != nullptr;
  };
  for (std::int64_t k = threadIdx.x; k < args.ids.num_topk; k += blockDim.x) {
    switch (args.sum_source) {
      case SumSource::kGather: set(k, gather_summand(args, t, k, num_errors)); break;
      case SumSource::kContiguous: set(k, contiguous_summand(args, t, k, num_errors)); break;
      case SumSource::kBatched:
        if (args.map.choices[t * args.ids.num_topk + k].expert >= 0) {
          set(order_of(args, t, k), batched_summand(args, t, k, num_errors));
        }
        break;
    }
  }
  return __syncthreads_count(num_summands > 0) <= kFewRows;
}

// row = round(row * weight) in place; the sum then uses the rounded value.
template <typename In, int kCount>
__device__ void weigh_and_add(const Summand& summand, std::int64_t offset,
                              Elements<typename In::Bits, kCount>& row, float* sum) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) {
    row.at[j] = In::narrow(In::widen(row.at[j]) * summand.weight);
    sum[j] = sum[j] + In::widen(row.at[j]);
  }
  store_elements(summand.row + offset, row);
}

template <typename In, int kCount>
__device__ void add(const Summand& summand, const Elements<typename In::Bits, kCount>& row,
                    float* sum) {
#pragma unroll
  for (int j = 0; j < kCount; ++j) sum[j] = fmaf(summand.weight, In::widen(row.at[j]), sum[j]);
}

// Sums kWords words of a token, blockDim.x words apart; only the first `count` exist.
template <typename In, typename Out, int kCount, bool kWeighs, int kRows, int kWords>
__device__ void sum_words(const Summand* summands, std::int64_t num_summands, std::int64_t word,
                          int count, std::byte* out) {
  using Row = Elements<typename In::Bits, kCount>;
  const auto offset = [&](int w) {
    return (word + w * static_cast<int>(blockDim.x)) * static_cast<std::int64_t>(sizeof(Row));
  };
  float sums[kWords][kCount] = {};
#pragma unroll 1
  for (std::int64_t first = 0; first < num_summands; first += kRows) {
    Row rows[kRows][kWords];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (first + i >= num_summands || summands[first + i].row == nullptr) continue;
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        if (w < count) {
          rows[i][w] =
              load_elements<typename In::Bits, kCount>(summands[first + i].row + offset(w));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (first + i >= num_summands || summands[first + i].row == nullptr) continue;
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        if (w >= count) continue;
        if constexpr (kWeighs) {
          weigh_and_add<In, kCount>(summands[first + i], offset(w), rows[i][w], sums[w]);
        } else {
          add<In, kCount>(summands[first + i], rows[i][w], sums[w]);
        }
      }
    }
  }
#pragma unroll
  for (int w = 0; w < kWords; ++w) {
    if (w >= count) continue;
    Elements<typename Out::Bits, kCount> rounded;
#pragma unroll
    for (int j = 0; j < kCount; ++j) rounded.at[j] = Out::narrow(sums[w][j]);
    store_elements(out + (word + w * static_cast<int>(blockDim.x)) *
                             static_cast<std::int64_t>(sizeof(rounded)),
                   rounded);
  }
}

template <typename In, typename Out, int kCount, bool kWeighs>
__global__ void __launch_bounds__(256)
    reduce_rows_kernel(ReduceArgs args, std::int64_t part_words) {
  extern __shared__ __align__(16) std::byte shared[];
  Summand* summands = reinterpret_cast<Summand*>(shared);
  follow_kernel();
  const std::int64_t t = blockIdx.x;
  const bool is_few = collect_summands(args, t, summands);
  const std::int64_t num_words = args.hidden / kCount;
  const std::int64_t begin = blockIdx.y * part_words;
  const std::int64_t end = begin + part_words < num_words ? begin + part_words : num_words;
  const std::int64_t step = blockDim.x;
  std::int64_t word = begin + threadIdx.x;
  if (is_few) {
    for (; word < end; word += kWordsAtOnce * step) {
      const std::int64_t left = (end - word + step - 1) / step;
      sum_words<In, Out, kCount, kWeighs, 1, kWordsAtOnce>(
          summands, args.ids.num_topk, word,
          left < kWordsAtOnce ? static_cast<int>(left) : kWordsAtOnce, args.out.row(t));
    }
    return;
  }
  for (; word < end; word += step) {
    sum_words<In, Out, kCount, kWeighs, kRowsAtOnce, 1>(summands, args.ids.num_topk, word, 1,
                                                        args.out.row(t));
  }
}

template <typename In, typename Out, int kCount, bool kWeighs>
void launch(const ReduceArgs& args, Stream stream) {
  const RowGrid grid = row_grid(args.ids.num_tokens, args.hidden / kCount);
  const auto shared_bytes = static_cast<std::size_t>(args.ids.num_topk) * sizeof(Summand);
  // Only kBatched depends on a kernel launched just before, which wrote the places.
  const bool follows = args.sum_source == SumSource::kBatched && has_programmatic_launch();
  launch_kernel(reduce_rows_kernel<In, Out, kCount, kWeighs>,
                {static_cast<int>(args.ids.num_tokens), static_cast<int>(grid.num_threads),
                 shared_bytes, follows, stream.get(), static_cast<int>(grid.num_parts)},
                "reduce_rows_kernel", args, grid.part_words);
}

// Uses 16-byte accesses where addresses allow them, otherwise one element at a time.
template <typename In, typename Out, bool kWeighs>
void launch_width(const ReduceArgs& args, Stream stream) {
  constexpr int kWide = 16 / sizeof(typename In::Bits);
  constexpr std::int64_t kOutBytes = kWide * static_cast<std::int64_t>(sizeof(typename Out::Bits));
  const std::int64_t out_bytes = kOutBytes < 16 ? kOutBytes : 16;
  const bool is_wide =
      args.hidden % kWide == 0 &&
      has_aligned_rows(args.rows.data, args.rows.stride_bytes, args.rows.num_rows, 16) &&
      has_aligned_rows(args.out.data, args.out.stride_bytes, args.out.num_rows, out_bytes);
  if (is_wide) return launch<In, Out, kWide, kWeighs>(args, stream);
  launch<In, Out, 1, kWeighs>(args, stream);
}

template <typename Visit>
void with_element(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::kBF16: return visit(BF16{});
    case DType::kF16: return visit(F16{});
    default: return visit(F32{});
  }
}

}  // namespace

void reduce_rows(const ReduceArgs& args, Stream stream) {
  if (args.ids.num_tokens == 0 || args.hidden == 0) return;
  with_element(args.row_dtype, [&](auto in) {
    using In = decltype(in);
    if (args.weighs_in_place) return launch_width<In, In, true>(args, stream);
    with_element(args.out_dtype,
                 [&](auto out) { launch_width<In, decltype(out), false>(args, stream); });
  });
}

}  // namespace switchyard::cuda
