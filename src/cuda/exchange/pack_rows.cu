// SPDX-License-Identifier: Apache-2.0
//
// Makes rows for other hosts: one kernel for each size of a row's elements.

#include <algorithm>

#include "cuda/base/launch.h"
#include "cuda/exchange/host_rows.h"
#include "cuda/exchange/row_form.cuh"

namespace switchyard::cuda {
namespace {

constexpr int kPackThreads = kExchangeThreads;
constexpr int kPackWarps = kPackThreads / kLanes;

/// The row of a token in message `m`.
__device__ __forceinline__ std::int32_t number_in(const PackedRows& to, int m, int token) {
  return to.numbers == nullptr ? token : to.numbers[m * to.numbers_stride + token];
}

/// Whether a token has a row of the block in any message; for all lanes.
__device__ __forceinline__ bool is_wanted(const PackedRows& to, int token, int lane) {
  bool is_in_block = false;
  for (int m = lane; m < to.messages.count; m += kLanes) {
    is_in_block |= to.block.has(number_in(to, m, token));
  }
  return __any_sync(kAllLanes, is_in_block) != 0;
}

/// One warp per chunk of a token, which goes to the messages of all hosts.
template <class Form>
__global__ void __launch_bounds__(kPackThreads)
    pack_rows_kernel(const __grid_constant__ DispatchArgs a, PackedRows to) {
  __shared__ alignas(16) std::uint8_t memory[kPackWarps][kMaxChunkScaleBytes];
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int warp = static_cast<int>(threadIdx.x) / kLanes;
  std::uint8_t* scales = memory[warp];
  const int num_chunks = a.layout.num_chunks;
  const std::int64_t num_items = std::int64_t{a.tokens.count} * num_chunks;
  for (std::int64_t item = std::int64_t{blockIdx.x} * kPackWarps + warp; item < num_items;
       item += std::int64_t{gridDim.x} * kPackWarps) {
    const auto token = static_cast<int>(item / num_chunks);
    const auto chunk = static_cast<int>(item - std::int64_t{token} * num_chunks);
    if (!is_wanted(to, token, lane)) continue;
    const VecSource from(a, token, chunk, lane);
    std::uint32_t words[Form::kWords];
    Form::make(a, from, lane, words, scales);
    const int s = chunk * a.scales.per_chunk + lane;
    const std::int64_t num_scales = a.scales.block.num_scales;
    const bool has_scale = to.scales != nullptr && lane < a.scales.per_chunk && s < num_scales;
    const auto scale_bytes = static_cast<int>(a.scales.block.element_bytes);
#pragma unroll 1
    for (int m = 0; m < to.messages.count; ++m) {
      const std::int32_t number = number_in(to, m, token);
      if (!to.block.has(number)) continue;
      const std::size_t message = static_cast<std::size_t>(m) * to.messages.stride;
      if (from.first < a.layout.shape.hidden) {
        constexpr int kVecBytes = Form::kWords * 4;
        auto* at =
            reinterpret_cast<std::uint32_t*>(to.rows + message + std::int64_t{number} * to.stride +
                                             std::int64_t{from.first} / kVecElements * kVecBytes);
#pragma unroll
        for (int i = 0; i < Form::kWords; i += 2) {
          *reinterpret_cast<uint2*>(at + i) = {words[i], words[i + 1]};
        }
      }
      if (!has_scale) continue;
      std::byte* scale_at = to.scales + message + (number * num_scales + s) * scale_bytes;
      for (int b = 0; b < scale_bytes; ++b) {
        scale_at[b] = static_cast<std::byte>(scales[lane * scale_bytes + b]);
      }
    }
    __syncwarp();
  }
}

template <class Form>
void launch_pack(const DispatchArgs& args, const PackedRows& to, cudaStream_t stream) {
  const std::int64_t num_items = std::int64_t{args.tokens.count} * args.layout.num_chunks;
  const std::int64_t ctas = (num_items + kPackWarps - 1) / kPackWarps;
  launch_kernel(pack_rows_kernel<Form>,
                {static_cast<int>(std::clamp<std::int64_t>(ctas, 1, to.max_ctas)), kPackThreads, 0,
                 false, stream},
                "dispatch", args, to);
}

using PackedForm16 = AnyForm<PlainForm16, SimulatedForm>;
using PackedForm8 = AnyForm<StoredForm8, Fp8BlockForm, OtherForm8>;

}  // namespace

void launch_pack_rows(const DispatchArgs& args, const PackedRows& to, cudaStream_t stream) {
  const bool is_bytes = args.scheme.is_quantized() && !args.scheme.is_simulated();
  const DType dtype = args.scheme.dtype;
  const auto launch = dtype == DType::kF32    ? launch_pack<PlainForm32>
                      : dtype == DType::kE2M1 ? launch_pack<Form4>
                      : is_bytes              ? launch_pack<PackedForm8>
                                              : launch_pack<PackedForm16>;
  launch(args, to, stream);
}

}  // namespace switchyard::cuda
