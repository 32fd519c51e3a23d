// SPDX-License-Identifier: Apache-2.0
//
// scatter_rows.cu: a block reads a token's row once, several words per thread at a time, and writes
// it to the token's places. The blocks after those clear the scales of buffer rows without a token.
// Loads are streaming; stores keep the default L2 policy: evict-first stores took 2 to 4 % longer.
//
// Column-major scales are handled 32 rows at a time, or else each word would be an access of its
// own. Each lane finds its row's token in the first column and replaces it by the token's scales.

#include "cuda/base/check.h"
#include "cuda/base/launch.h"
#include "cuda/base/row_words.cuh"
#include "cuda/permute/permute.h"
#include "cuda/permute/row_grid.h"

namespace switchyard::cuda {
namespace {

constexpr int kWarp = 32;
constexpr int kWordsAtOnce = 14;  // words per thread
constexpr int kScatterThreads = 64;

// Kernel parameters: the arguments, how rows are split, and how scales are moved.
struct ScatterPlan {
  ScatterArgs args;
  std::int64_t part_words = 0;
  int scale_row_bytes = 0;       // bytes per access if rows of scales are contiguous; else 0
  bool has_wide_scales = false;  // column-major: load_four_words may use one access
};

// Words [begin, end) of a row, held in registers between load() and store().
template <typename Word, int kAtOnce = kWordsAtOnce>
class RowWords {
 public:
  __device__ RowWords(const std::byte* from, std::int64_t begin, std::int64_t end)
      : words_(reinterpret_cast<const Word*>(from)), first_(begin + threadIdx.x), end_(end) {}

  // Loads the words that the thread holds at once.
  __device__ void load() {
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const std::int64_t at = first_ + j * std::int64_t{blockDim.x};
      if (at < end_) moved_[j] = load_once(words_ + at);
    }
  }

  // Stores to all rows of `places` that are not negative.
  __device__ void store(const ByteRows& to, const std::int64_t* places, std::int64_t num_places) {
    const std::int64_t step = blockDim.x;
#pragma unroll 1
    while (first_ < end_) {
#pragma unroll 1
      for (std::int64_t p = 0; p < num_places; ++p) {
        if (places[p] < 0) continue;
        auto* out = reinterpret_cast<Word*>(to.row(places[p]));
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          if (first_ + j * step < end_) __stcg(out + first_ + j * step, moved_[j]);
        }
      }
      first_ += kAtOnce * step;
      load();
    }
  }

 private:
  const Word* words_;
  std::int64_t first_;
  std::int64_t end_;
  Word moved_[kAtOnce];
};

__device__ std::uint64_t load_scale(const ScaleMove& scales, std::int64_t t, std::int64_t w) {
  const std::int64_t row = t * scales.from_token_stride;
  if (scales.packs) {
    std::uint64_t word = 0;
#pragma unroll 1
    for (int j = 0; j < 4 && 4 * w + j < scales.num_scales; ++j) {
      const std::byte code = scales.from[row + (4 * w + j) * scales.from_scale_stride];
      word |= static_cast<std::uint64_t>(code) << (8 * j);
    }
    return word;
  }
  const std::byte* from = scales.from + (row + w * scales.from_scale_stride) * scales.word_bytes;
  switch (scales.word_bytes) {
    case 1: return *reinterpret_cast<const std::uint8_t*>(from);
    case 2: return *reinterpret_cast<const std::uint16_t*>(from);
    case 4: return *reinterpret_cast<const std::uint32_t*>(from);
    default: return *reinterpret_cast<const std::uint64_t*>(from);
  }
}

__device__ void store_scale(const ScaleMove& scales, std::int64_t row, std::int64_t w,
                            std::uint64_t word) {
  std::byte* to =
      scales.to + (row * scales.to_row_stride + w * scales.to_word_stride) * scales.word_bytes;
  switch (scales.word_bytes) {
    case 1: *reinterpret_cast<std::uint8_t*>(to) = static_cast<std::uint8_t>(word); return;
    case 2: *reinterpret_cast<std::uint16_t*>(to) = static_cast<std::uint16_t>(word); return;
    case 4: *reinterpret_cast<std::uint32_t*>(to) = static_cast<std::uint32_t>(word); return;
    default: *reinterpret_cast<std::uint64_t*>(to) = word; return;
  }
}

// Copies rows of scales whose words are contiguous on both sides.
template <typename Word>
__device__ void copy_scale_row(const ScaleMove& scales, std::int64_t t, const std::int64_t* places,
                               std::int64_t num_places) {
  const std::int64_t row_bytes = scales.num_words * scales.word_bytes;
  const ByteRows to{scales.to, 0, 0, scales.to_row_stride * scales.word_bytes};
  const std::byte* from = scales.from + t * scales.from_token_stride * scales.word_bytes;
  const auto num_words = row_bytes / static_cast<std::int64_t>(sizeof(Word));
  RowWords<Word, 1> words(from, 0, num_words);
  words.load();
  words.store(to, places, num_places);
}

__device__ void place_scales(const ScatterPlan& plan, std::int64_t t, const std::int64_t* places) {
  const ScaleMove& scales = plan.args.scales;
  const std::int64_t num_places = plan.args.num_topk;
  switch (plan.scale_row_bytes) {
    case 16: return copy_scale_row<uint4>(scales, t, places, num_places);
    case 4: return copy_scale_row<std::uint32_t>(scales, t, places, num_places);
    case 1: return copy_scale_row<std::uint8_t>(scales, t, places, num_places);
    default: break;
  }
#pragma unroll 1
  for (std::int64_t w = threadIdx.x; w < scales.num_words; w += blockDim.x) {
    const std::uint64_t word = load_scale(scales, t, w);
#pragma unroll 1
    for (std::int64_t p = 0; p < num_places; ++p) {
      if (places[p] >= 0) store_scale(scales, places[p], w, word);
    }
  }
}

// The last expert that begins at or before `row`. Among experts that begin together, only the last
// can have rows. `row` is below num_rows, so there is one.
__device__ std::int64_t expert_at(const ScatterArgs& args, std::int64_t row) {
  std::int64_t low = 0;
  std::int64_t high = args.num_local;
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    (args.first_row[middle] <= row ? low : high) = middle;
  }
  return low;
}

// Clears the scales of those rows of a warp that have no token, along the contiguous dimension.
__device__ void clear_scales(const ScaleMove& scales, std::int64_t row, bool is_padding) {
  if (scales.to_row_stride == 1) {
#pragma unroll 1
    for (std::int64_t w = 0; is_padding && w < scales.num_words; ++w) {
      store_scale(scales, row, w, 0);
    }
    return;
  }
  const unsigned lane = threadIdx.x % kWarp;
  for (unsigned left = __ballot_sync(0xFFFFFFFFu, is_padding); left != 0; left &= left - 1) {
    const std::int64_t padding = row - lane + __ffs(static_cast<int>(left)) - 1;
#pragma unroll 1
    for (std::int64_t w = lane; w < scales.num_words; w += kWarp) {
      store_scale(scales, padding, w, 0);
    }
  }
}

// Loads four words of a token's scales. `is_wide`: scales are contiguous and 16-byte aligned, one
// word each or, packed, four to a word.
__device__ uint4 load_four_words(const ScaleMove& scales, bool is_wide, std::int64_t t,
                                 std::int64_t w) {
  if (is_wide && (w + 4) * (scales.packs ? 4 : 1) <= scales.num_scales) {
    return *reinterpret_cast<const uint4*>(
        scales.from + 4 * (t * scales.from_token_stride / (scales.packs ? 4 : 1) + w));
  }
  uint4 words{};
  words.x = static_cast<std::uint32_t>(load_scale(scales, t, w));
  if (w + 1 < scales.num_words) words.y = static_cast<std::uint32_t>(load_scale(scales, t, w + 1));
  if (w + 2 < scales.num_words) words.z = static_cast<std::uint32_t>(load_scale(scales, t, w + 2));
  if (w + 3 < scales.num_words) words.w = static_cast<std::uint32_t>(load_scale(scales, t, w + 3));
  return words;
}

// Places the scales of 32 rows in columns; warps alternate every four words. Zero without a token.
__device__ void place_columns(const ScatterPlan& plan, std::int64_t row) {
  const ScaleMove& scales = plan.args.scales;
  auto* column = reinterpret_cast<std::uint32_t*>(scales.to) + row;
  const bool is_row = row < plan.args.m;
  const std::int64_t token = is_row ? static_cast<std::int32_t>(*column) : -1;
  __syncthreads();  // wait until all warps have read it
  if (!is_row) return;
  const std::int64_t step = blockDim.x / kWarp * 4;
#pragma unroll 4
  for (std::int64_t w = threadIdx.x / kWarp * 4; w < scales.num_words; w += step) {
    const uint4 words =
        token < 0 ? uint4{} : load_four_words(scales, plan.has_wide_scales, token, w);
    std::uint32_t* to = column + w * scales.to_word_stride;
    to[0] = words.x;
    if (w + 1 < scales.num_words) to[scales.to_word_stride] = words.y;
    if (w + 2 < scales.num_words) to[2 * scales.to_word_stride] = words.z;
    if (w + 3 < scales.num_words) to[3 * scales.to_word_stride] = words.w;
  }
}

// Finishes the scales of 32 buffer rows; each warp assigns one row per lane.
__device__ void finish_scales(const ScatterPlan& plan, std::int64_t block) {
  const ScatterArgs& args = plan.args;
  const std::int64_t row = block * kWarp + threadIdx.x % kWarp;
  if (args.scales.has_columns()) return place_columns(plan, row);
  if (threadIdx.x >= kWarp) return;
  bool is_padding = row < args.m;
  if (is_padding && row < *args.num_rows) {
    const std::int64_t e = expert_at(args, row);
    is_padding = row - args.first_row[e] >= args.counts[e];
  }
  clear_scales(args.scales, row, is_padding);
}

template <typename Word>
__global__ void __launch_bounds__(kScatterThreads)
    scatter_rows_kernel(const __grid_constant__ ScatterPlan plan) {
  extern __shared__ std::int64_t places[];  // of this token
  const ScatterArgs& args = plan.args;
  const std::int64_t t = blockIdx.x;
  const bool is_first_part = blockIdx.y == 0;
  if (t >= args.from.num_rows) {
    follow_kernel();
    if (is_first_part) finish_scales(plan, t - args.from.num_rows);
    return;
  }
  const auto num_words = static_cast<std::int64_t>(args.from.row_bytes / sizeof(Word));
  const std::int64_t begin = blockIdx.y * plan.part_words;
  const std::int64_t end =
      begin + plan.part_words < num_words ? begin + plan.part_words : num_words;
  RowWords<Word> words(args.from.row(t), begin, end);
  if (args.reads_ahead) words.load();  // nothing that may still run writes x
  follow_kernel();
  int has_place = 0;
#pragma unroll 1
  for (std::int64_t k = threadIdx.x; k < args.num_topk; k += blockDim.x) {
    places[k] = args.inv_perm[t * args.num_topk + k];
    has_place |= places[k] >= 0;
  }
  if (__syncthreads_or(has_place) == 0) return;
  if (!args.reads_ahead) words.load();
  words.store(args.to, places, args.num_topk);
  const bool has_scale_row = args.scales.word_bytes != 0 && !args.scales.has_columns();
  if (is_first_part && has_scale_row) place_scales(plan, t, places);
}

struct CopyPlan {
  ByteRows from;
  ByteRows to;
  std::int64_t part_words;
};

template <typename Word>
__global__ void __launch_bounds__(256) copy_rows_kernel(CopyPlan plan) {
  const std::int64_t place = blockIdx.x;
  const auto num_words = static_cast<std::int64_t>(plan.from.row_bytes / sizeof(Word));
  const std::int64_t begin = blockIdx.y * plan.part_words;
  const std::int64_t end =
      begin + plan.part_words < num_words ? begin + plan.part_words : num_words;
  RowWords<Word> words(plan.from.row(place), begin, end);
  words.load();
  words.store(plan.to, &place, 1);
}

// The widest access, 16, 4 or 1 bytes, that both sides and the row size allow.
int access_bytes(const ByteRows& from, const ByteRows& to) {
  for (const int bytes : {16, 4}) {
    if (from.row_bytes % static_cast<std::size_t>(bytes) == 0 &&
        has_aligned_rows(from.data, from.stride_bytes, from.num_rows, bytes) &&
        has_aligned_rows(to.data, to.stride_bytes, to.num_rows, bytes)) {
      return bytes;
    }
  }
  return 1;
}

int scale_row_bytes(const ScatterArgs& args) {
  const ScaleMove& scales = args.scales;
  const bool is_contiguous =
      (scales.num_words <= 1 || (scales.from_scale_stride == 1 && scales.to_word_stride == 1)) &&
      !scales.packs && scales.word_bytes != 0;
  if (!is_contiguous) return 0;
  const auto row_bytes = static_cast<std::size_t>(scales.num_words * scales.word_bytes);
  return access_bytes({const_cast<std::byte*>(scales.from), args.from.num_rows, row_bytes,
                       scales.from_token_stride * scales.word_bytes},
                      {scales.to, args.m, row_bytes, scales.to_row_stride * scales.word_bytes});
}

template <typename Visit>
void with_word(int bytes, const Visit& visit) {
  switch (bytes) {
    case 16: return visit(uint4{});
    case 4: return visit(std::uint32_t{});
    default: return visit(std::uint8_t{});
  }
}

// Blocks of kScatterThreads: one per row or, if there are few rows, several.
RowGrid scatter_grid(std::int64_t num_rows, std::int64_t num_words) {
  RowGrid grid = row_grid(num_rows, num_words);
  grid.num_threads = kScatterThreads;
  return grid;
}

bool has_wide_rows(const ScaleMove& scales) {
  const std::int64_t stride = scales.from_token_stride * (scales.packs ? 1 : 4);
  return scales.from_scale_stride == 1 && stride % 16 == 0 &&
         reinterpret_cast<std::uintptr_t>(scales.from) % 16 == 0;
}

}  // namespace

void scatter_rows(const ScatterArgs& args, Stream stream) {
  const int bytes = access_bytes(args.from, args.to);
  const auto row_words = static_cast<std::int64_t>(args.from.row_bytes) / bytes;
  const RowGrid grid = scatter_grid(args.from.num_rows, row_words);
  ScatterPlan plan{args, grid.part_words};
  plan.scale_row_bytes = scale_row_bytes(args);
  plan.has_wide_scales = has_wide_rows(args.scales);
  const std::int64_t scale_blocks =
      args.scales.word_bytes == 0 ? 0 : cdiv<std::int64_t>(args.m, kWarp);
  const std::int64_t num_blocks = args.from.num_rows + scale_blocks;
  if (num_blocks == 0) return;
  with_word(bytes, [&](auto word) {
    const auto shared_bytes = static_cast<std::size_t>(args.num_topk) * sizeof(std::int64_t);
    launch_kernel(scatter_rows_kernel<decltype(word)>,
                  {static_cast<int>(num_blocks), kScatterThreads, shared_bytes,
                   has_programmatic_launch(), stream.get(), static_cast<int>(grid.num_parts)},
                  "scatter_rows_kernel", plan);
  });
}

void copy_rows(const ByteRows& from, const ByteRows& to, Stream stream) {
  if (from.num_rows == 0 || from.row_bytes == 0) return;
  const int bytes = access_bytes(from, to);
  const RowGrid grid = row_grid(from.num_rows, static_cast<std::int64_t>(from.row_bytes) / bytes);
  with_word(bytes, [&](auto word) {
    copy_rows_kernel<decltype(word)>
        <<<dim3(static_cast<unsigned>(from.num_rows), grid.num_parts), grid.num_threads, 0,
           stream.get()>>>({from, to, grid.part_words});
  });
  check_launch("copy_rows_kernel");
}

}  // namespace switchyard::cuda
