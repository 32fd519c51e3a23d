// SPDX-License-Identifier: Apache-2.0
//
// exact_product.cu: rows times weights, with each output one fma chain, k ascending: the bits of
// cpu/gemm.h. A thread block computes 32 rows of one expert, a warp two panels of 32 outputs, and a
// lane four outputs of each panel for a quarter of the rows: as many sums as its registers hold,
// because shared-memory bandwidth is the limit. Weights are loaded once per tile, two stages ahead;
// rows are widened and transposed on their way to shared memory.
//
// The grid has one block per possible tile. Each block counts tiles to find its own; a block
// without a tile exits.

#include <algorithm>

#include "cuda/base/check.h"
#include "cuda/base/ptx.cuh"
#include "cuda/experts/expert_kernels.h"
#include "cuda/quantize/rows.cuh"

namespace switchyard::cuda {
namespace {

constexpr int kTileRows = 32;
constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kPanels = 2;  // per warp
constexpr int kPanelsOfBlock = kWarps * kPanels;
constexpr int kColumns = 4;    // per lane and panel
constexpr int kRowGroups = 4;  // groups of lanes; the lanes of a group share its rows
constexpr int kStages = 3;
constexpr int kPanel = static_cast<int>(kProductPanel);
constexpr int kStageBytes = 2048;  // per panel

struct Tile {
  std::int64_t expert = 0;
  std::int64_t first_row = 0;
  int num_rows = 0;  // 0: there is no such tile
};

// All lanes of a warp call it; they scan 32 experts at a time.
__device__ __forceinline__ Tile find_tile(const RowRanges& ranges, std::int64_t index) {
  const unsigned lane = threadIdx.x % 32;
  for (std::int64_t base = 0; base < ranges.num_experts; base += 32) {
    const RowRange range = base + lane < ranges.num_experts ? ranges.of(base + lane) : RowRange{};
    const std::int64_t num_tiles = cdiv<std::int64_t>(range.count, kTileRows);
    std::int64_t end = num_tiles;
#pragma unroll
    for (unsigned distance = 1; distance < 32; distance *= 2) {
      const std::int64_t before = __shfl_up_sync(0xFFFFFFFFu, end, distance);
      if (lane >= distance) end += before;
    }
    const unsigned behind = __ballot_sync(0xFFFFFFFFu, index < end);
    if (behind != 0) {
      const int owner = __ffs(static_cast<int>(behind)) - 1;
      const std::int64_t skipped =
          (index - __shfl_sync(0xFFFFFFFFu, end - num_tiles, owner)) * kTileRows;
      const std::int64_t left = __shfl_sync(0xFFFFFFFFu, range.count, owner) - skipped;
      return {base + owner, __shfl_sync(0xFFFFFFFFu, range.first, owner) + skipped,
              left < kTileRows ? static_cast<int>(left) : kTileRows};
    }
    index -= __shfl_sync(0xFFFFFFFFu, end, 31);
  }
  return {};
}

// Four neighbours of a row of weights.
__device__ __forceinline__ void load_weights(const std::uint16_t* from, float* w) {
  const uint2 four = *reinterpret_cast<const uint2*>(from);
  const float2 low = widen2_bf16(four.x);
  const float2 high = widen2_bf16(four.y);
  w[0] = low.x, w[1] = low.y, w[2] = high.x, w[3] = high.y;
}

__device__ __forceinline__ void load_weights(const float* from, float* w) {
  const float4 four = *reinterpret_cast<const float4*>(from);
  w[0] = four.x, w[1] = four.y, w[2] = four.z, w[3] = four.w;
}

// Loads the rows of a lane at one k.
template <int kCount>
__device__ __forceinline__ void load_rows(const float* from, float* x) {
  if constexpr (kCount == 2) {
    const float2 two = *reinterpret_cast<const float2*>(from);
    x[0] = two.x, x[1] = two.y;
  } else {
#pragma unroll
    for (int r = 0; r < kCount; r += 4) load_weights(from + r, x + r);
  }
}

// One tile times kPanels panels per warp. kRows is 8, 16 or 32, at least the rows of the tile.
template <DType kX, DType kW, int kRows>
class TileProduct {
 public:
  __device__ TileProduct(const ExpertProduct& product, const Tile& tile, std::int64_t first_panel,
                         std::byte* shared)
      : product_(product),
        tile_(tile),
        panel_(first_panel + threadIdx.x / 32 * kPanels),
        lane_(threadIdx.x % 32),
        weights_(shared + threadIdx.x / 32 * (kPanels * kStages * kStageBytes)),
        rows_(reinterpret_cast<float*>(shared + kWarps * kPanels * kStages * kStageBytes)) {
    panel_bytes_ = product.depth * kPanel * std::int64_t{sizeof(W)};
    const std::int64_t num_panels = product.num_columns / kPanel;
    num_panels_ = static_cast<int>(min(num_panels - panel_, std::int64_t{kPanels}));
    from_ = product.weights + (tile.expert * num_panels + panel_) * panel_bytes_;
    const auto* x = static_cast<const X*>(product.x);
    x_ = x + (tile.first_row + lane_) * product.x_stride;
    is_wide_ = product.depth % kPart == 0 && is_aligned<16>(x_);
  }

  __device__ __forceinline__ void run() {
    const auto num_steps = static_cast<int>(cdiv<std::int64_t>(product_.depth, kDepth));
    for (int step = 0; step < kStages - 1; ++step) fetch_weights(step);
    fetch_rows(0);
    for (int step = 0; step < num_steps; ++step) {
      float* rows = rows_ + step % 2 * (kDepth * kTileRows);
      store_rows(rows);
      wait_async_groups<kStages - 2>();
      __syncthreads();
      fetch_weights(step + kStages - 1);
      fetch_rows(step + 1);
      multiply(rows, weights_ + step % kStages * (kPanels * kStageBytes), depth_of(step));
    }
    store_sums();
    __syncthreads();  // shared memory may be reused
  }

  static constexpr std::size_t shared_bytes() {
    return kWarps * kPanels * kStages * kStageBytes + 2 * kDepth * kTileRows * sizeof(float);
  }

 private:
  using X = ElementBits<kX>;
  using W = ElementBits<kW>;
  static constexpr int kDepth = kStageBytes / (kPanel * int{sizeof(W)});  // k per step
  static constexpr int kPart = kDepth / kWarps;                           // k per thread
  static constexpr int kWords = kPart * int{sizeof(X)} / 4;
  static constexpr int kOwnRows = kRows / kRowGroups;

  // The rest of the depth from a step on, at most one step.
  __device__ __forceinline__ int depth_of(int step) const {
    const std::int64_t left = product_.depth - std::int64_t{step} * kDepth;
    return left < kDepth ? static_cast<int>(left) : kDepth;
  }

  __device__ __forceinline__ void fetch_weights(int step) {
    std::byte* to = weights_ + step % kStages * (kPanels * kStageBytes);
    const std::byte* from = from_ + std::int64_t{step} * kStageBytes;
    const int num_bytes = depth_of(step) * kPanel * int{sizeof(W)};
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
      if (p >= num_panels_) break;
      for (int i = static_cast<int>(lane_) * 16; i < num_bytes; i += 32 * 16) {
        copy_async_16(to + p * kStageBytes + i, from + p * panel_bytes_ + i);
      }
    }
    commit_async_group();
  }

  // Each lane loads one row, each warp a part of the depth.
  __device__ __forceinline__ void fetch_rows(int step) {
    const std::int64_t k = std::int64_t{step} * kDepth + threadIdx.x / 32 * kPart;
    const bool exists = static_cast<int>(lane_) < tile_.num_rows;
    const std::int64_t num_bytes = exists ? (product_.depth - k) * std::int64_t{sizeof(X)} : 0;
    load_words<kWords>(x_ + k, num_bytes, is_wide_, words_);
  }
  __device__ __forceinline__ void store_rows(float* rows) const {
    float* to = rows + threadIdx.x / 32 * kPart * kTileRows + lane_;
#pragma unroll
    for (int i = 0; i < kPart; ++i) to[i * kTileRows] = element(i);
  }
  __device__ __forceinline__ float element(int i) const {
    if constexpr (kX == DType::kF32) return f32_from_bits(words_[i]);
    const float2 both = widen2_bf16(words_[i / 2]);
    return i % 2 == 0 ? both.x : both.y;
  }

  __device__ __forceinline__ void multiply(const float* rows, const std::byte* weights, int depth) {
    const auto* w = reinterpret_cast<const W*>(weights) + lane_ % 8 * kColumns;
    const float* x = rows + lane_ / 8 * kOwnRows;
#pragma unroll 4
    for (int k = 0; k < depth; ++k) {
      float own_x[kOwnRows];
      load_rows<kOwnRows>(x + k * kTileRows, own_x);
#pragma unroll
      for (int p = 0; p < kPanels; ++p) {
        float own_w[kColumns];
        load_weights(w + p * (kStageBytes / int{sizeof(W)}) + k * kPanel, own_w);
#pragma unroll
        for (int r = 0; r < kOwnRows; ++r) {
#pragma unroll
          for (int c = 0; c < kColumns; ++c) {
            sums_[p][r][c] = __fmaf_rn(own_x[r], own_w[c], sums_[p][r][c]);
          }
        }
      }
    }
  }

  __device__ __forceinline__ void store_sums() const {
    const int first = static_cast<int>(lane_ / 8) * kOwnRows;
#pragma unroll
    for (int p = 0; p < kPanels; ++p) {
      if (p >= num_panels_) return;
      const std::int64_t column = (panel_ + p) * kPanel + lane_ % 8 * kColumns;
#pragma unroll
      for (int r = 0; r < kOwnRows; ++r) {
        if (first + r >= tile_.num_rows) break;
        const std::int64_t row = (tile_.first_row + first + r) * product_.y_stride;
#pragma unroll
        for (int c = 0; c < kColumns; ++c) store(row, column + c, sums_[p][r][c]);
      }
    }
  }
  __device__ __forceinline__ void store(std::int64_t row, std::int64_t column, float sum) const {
    const ExpertProduct& p = product_;
    if (column >= p.num_outputs) return;
    if (p.bias != nullptr) sum += p.bias[tile_.expert * p.num_outputs + column];
    if (p.y_dtype == DType::kF32) {
      static_cast<float*>(p.y)[row + column] = sum;
    } else {
      static_cast<std::uint16_t*>(p.y)[row + column] = bf16_from_f32(sum);
    }
  }

  const ExpertProduct& product_;
  const Tile& tile_;
  std::int64_t panel_;
  unsigned lane_;
  std::byte* weights_;  // kStages of this warp's panels
  float* rows_;         // two buffers of [kDepth][kTileRows]
  std::int64_t panel_bytes_;
  int num_panels_;
  const std::byte* from_;
  const X* x_;
  bool is_wide_;
  std::uint32_t words_[kWords];
  float sums_[kPanels][kOwnRows][kColumns] = {};
};

template <DType kX, DType kW>
__global__ void __launch_bounds__(kThreads)
    exact_product_kernel(const __grid_constant__ ExpertProduct product) {
  extern __shared__ __align__(16) std::byte shared[];
  const Tile tile = find_tile(product.ranges, blockIdx.x);
  if (tile.num_rows == 0) return;
  const std::int64_t num_panels = product.num_columns / kPanel;
  for (std::int64_t panel = std::int64_t{blockIdx.y} * kPanelsOfBlock; panel < num_panels;
       panel += std::int64_t{gridDim.y} * kPanelsOfBlock) {
    if (tile.num_rows <= 8) {
      TileProduct<kX, kW, 8>(product, tile, panel, shared).run();
    } else if (tile.num_rows <= 16) {
      TileProduct<kX, kW, 16>(product, tile, panel, shared).run();
    } else {
      TileProduct<kX, kW, 32>(product, tile, panel, shared).run();
    }
  }
}

template <DType kX, DType kW>
void launch(const ExpertProduct& product, Stream stream) {
  constexpr std::size_t kSharedBytes = TileProduct<kX, kW, 8>::shared_bytes();
  const std::int64_t num_tiles = product.ranges.max_tiles(kTileRows);
  const std::int64_t groups = cdiv<std::int64_t>(product.num_columns / kPanel, kPanelsOfBlock);
  if (num_tiles == 0 || groups == 0) return;
  check_cuda(cudaFuncSetAttribute(reinterpret_cast<const void*>(exact_product_kernel<kX, kW>),
                                  cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(kSharedBytes)),
             "exact experts");
  const dim3 grid(static_cast<unsigned>(std::min<std::int64_t>(num_tiles, 0x7FFFFFFF)),
                  static_cast<unsigned>(std::min<std::int64_t>(groups, 65535)));
  exact_product_kernel<kX, kW><<<grid, kThreads, kSharedBytes, stream.get()>>>(product);
  check_launch("exact experts");
}

}  // namespace

void launch_exact_product(const ExpertProduct& product, Stream stream) {
  const bool is_narrow = product.weight_dtype == DType::kBF16;
  if (product.x_dtype == DType::kBF16) {
    return is_narrow ? launch<DType::kBF16, DType::kBF16>(product, stream)
                     : launch<DType::kBF16, DType::kF32>(product, stream);
  }
  return is_narrow ? launch<DType::kF32, DType::kBF16>(product, stream)
                   : launch<DType::kF32, DType::kF32>(product, stream);
}

}  // namespace switchyard::cuda
