// SPDX-License-Identifier: Apache-2.0
//
// exact_product.cu: rows times weights, each output one chain of fma, k ascending: the bits of
// cpu/gemm.h. A thread block has 32 rows of an expert, a warp a panel of 32 outputs, a lane two
// outputs of half of the rows. Weights come from memory once for a tile, three stages ahead; rows
// are widened and turned on their way to shared memory.
//
// The grid has a block for every tile that there may be. Blocks count tiles to find their own, and
// those without one end.

#include <algorithm>

#include "cuda/check.h"
#include "cuda/expert_kernels.h"
#include "cuda/rows.cuh"

namespace switchyard {
namespace {

constexpr int kTileRows = 32;
constexpr int kWarps = 4;  // a panel each
constexpr int kThreads = 32 * kWarps;
constexpr int kStages = 3;
constexpr int kPanel = static_cast<int>(kProductPanel);
constexpr int kStageBytes = 4096;  // of a panel

struct Tile {
  std::int64_t expert = 0;
  std::int64_t first_row = 0;
  int num_rows = 0;  // 0: there is no such tile
};

// By all lanes of a warp: 32 experts at a time.
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

__device__ __forceinline__ void copy_16_bytes(std::byte* to, const std::byte* from) {
  const auto shared = static_cast<std::uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(from));
}

__device__ __forceinline__ float2 load_weights(const std::uint16_t* panel, int k, unsigned pair) {
  const std::uint32_t both = reinterpret_cast<const std::uint32_t*>(panel)[k * (kPanel / 2) + pair];
  return widen2_bf16(both);
}

__device__ __forceinline__ float2 load_weights(const float* panel, int k, unsigned pair) {
  return reinterpret_cast<const float2*>(panel)[k * (kPanel / 2) + pair];
}

// One tile times kWarps panels. kRows: 8, 16 or 32, at least those of the tile.
template <DType kX, DType kW, int kRows>
class TileProduct {
 public:
  __device__ TileProduct(const ExpertProduct& product, const Tile& tile, std::int64_t first_panel,
                         std::byte* shared)
      : product_(product),
        tile_(tile),
        panel_(first_panel + threadIdx.x / 32),
        lane_(threadIdx.x % 32),
        weights_(shared + threadIdx.x / 32 * kStages * kStageBytes),
        rows_(reinterpret_cast<float*>(shared + kWarps * kStages * kStageBytes)) {
    const std::int64_t panel_bytes = product.depth * kPanel * std::int64_t{sizeof(W)};
    const std::int64_t num_panels = product.num_columns / kPanel;
    has_panel_ = panel_ < num_panels;
    from_ = product.weights + (tile.expert * num_panels + panel_) * panel_bytes;
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
      asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2));
      __syncthreads();
      fetch_weights(step + kStages - 1);
      fetch_rows(step + 1);
      multiply(rows, weights_ + step % kStages * kStageBytes, depth_of(step));
    }
    store_sums();
    __syncthreads();  // shared memory is free
  }

  static constexpr std::size_t shared_bytes() {
    return kWarps * kStages * kStageBytes + 2 * kDepth * kTileRows * sizeof(float);
  }

 private:
  using X = ElementBits<kX>;
  using W = ElementBits<kW>;
  static constexpr int kDepth = kStageBytes / (kPanel * int{sizeof(W)});  // k of a step
  static constexpr int kPart = kDepth / kWarps;                           // of a thread
  static constexpr int kWords = kPart * int{sizeof(X)} / 4;
  static constexpr int kSums = kRows / 2;

  // What is left of the depth from a step on, at most the step.
  __device__ __forceinline__ int depth_of(int step) const {
    const std::int64_t left = product_.depth - std::int64_t{step} * kDepth;
    return left < kDepth ? static_cast<int>(left) : kDepth;
  }

  __device__ __forceinline__ void fetch_weights(int step) {
    std::byte* to = weights_ + step % kStages * kStageBytes;
    const std::byte* from = from_ + std::int64_t{step} * kStageBytes;
    const int num_bytes = has_panel_ ? depth_of(step) * kPanel * int{sizeof(W)} : 0;
    for (int i = static_cast<int>(lane_) * 16; i < num_bytes; i += 32 * 16) {
      copy_16_bytes(to + i, from + i);
    }
    asm volatile("cp.async.commit_group;");
  }

  // A lane has a row, a warp a part of the depth.
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
    const auto* panel = reinterpret_cast<const W*>(weights);
    const float* x = rows + lane_ / 16 * kSums;
#pragma unroll 8
    for (int k = 0; k < depth; ++k) {
      const float2 w = load_weights(panel, k, lane_ % 16);
#pragma unroll
      for (int r = 0; r < kSums; r += 4) {
        const float4 four = *reinterpret_cast<const float4*>(x + k * kTileRows + r);
        add(r, four.x, w);
        add(r + 1, four.y, w);
        add(r + 2, four.z, w);
        add(r + 3, four.w, w);
      }
    }
  }
  __device__ __forceinline__ void add(int r, float x, float2 w) {
    sums_[r].x = __fmaf_rn(x, w.x, sums_[r].x);
    sums_[r].y = __fmaf_rn(x, w.y, sums_[r].y);
  }

  __device__ __forceinline__ void store_sums() const {
    if (!has_panel_) return;
    const std::int64_t column = panel_ * kPanel + 2 * (lane_ % 16);
    const int first = static_cast<int>(lane_ / 16) * kSums;
#pragma unroll
    for (int r = 0; r < kSums; ++r) {
      if (first + r >= tile_.num_rows) return;
      const std::int64_t row = (tile_.first_row + first + r) * product_.y_stride;
      store(row, column, sums_[r].x);
      store(row, column + 1, sums_[r].y);
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
  std::byte* weights_;  // kStages of this warp's panel
  float* rows_;         // twice [kDepth][kTileRows]
  bool has_panel_;
  const std::byte* from_;
  const X* x_;
  bool is_wide_;
  std::uint32_t words_[kWords];
  float2 sums_[kSums] = {};
};

template <DType kX, DType kW>
__global__ void __launch_bounds__(kThreads)
    exact_product_kernel(const __grid_constant__ ExpertProduct product) {
  extern __shared__ __align__(16) std::byte shared[];
  const Tile tile = find_tile(product.ranges, blockIdx.x);
  if (tile.num_rows == 0) return;
  const std::int64_t num_panels = product.num_columns / kPanel;
  for (std::int64_t panel = std::int64_t{blockIdx.y} * kWarps; panel < num_panels;
       panel += std::int64_t{gridDim.y} * kWarps) {
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
  const std::int64_t groups = cdiv<std::int64_t>(product.num_columns / kPanel, kWarps);
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

}  // namespace switchyard
