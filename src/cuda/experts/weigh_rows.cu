// SPDX-License-Identifier: Apache-2.0
//
// weigh_rows.cu: multiplies rows by a number each, and computes that number for a shared expert's
// gate. The gate's dot product is one serial chain, as on the CPU: a warp keeps part of it in
// shared memory, and all of its lanes run the same chain.

#include <algorithm>

#include "core/round_up.h"
#include "cuda/base/check.h"
#include "cuda/base/row_words.cuh"
#include "cuda/experts/layer_rows.h"
#include "quant/exp.h"

namespace switchyard::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kLanes = 32;
constexpr int kPart = 256;  // elements of a chain in shared memory at once

template <typename Element>
__global__ void weigh_rows_kernel(WeighRowsArgs args) {
  using Bits = typename Element::Bits;
  const auto* from = static_cast<const Bits*>(args.from) + blockIdx.x * args.hidden;
  auto* to = static_cast<Bits*>(args.to) + blockIdx.x * args.hidden;
  const float weight = Element::widen(Element::narrow(args.weights[blockIdx.x]));
  for (std::int64_t h = blockIdx.y * kThreads + threadIdx.x; h < args.hidden;
       h += gridDim.y * kThreads) {
    to[h] = Element::narrow(Element::widen(from[h]) * weight);
  }
}

__device__ float element(const void* data, DType dtype, std::int64_t i) {
  switch (dtype) {
    case DType::kBF16: return BF16::widen(static_cast<const std::uint16_t*>(data)[i]);
    case DType::kF16: return F16::widen(static_cast<const std::uint16_t*>(data)[i]);
    default: return static_cast<const float*>(data)[i];
  }
}

__global__ void __launch_bounds__(kLanes) gate_weights_kernel(GateWeightsArgs args) {
  __shared__ float2 part[kPart];
  const std::int64_t row = blockIdx.x * args.hidden_stride;
  float sum = 0.0f;
  for (std::int64_t begin = 0; begin < args.num_elements; begin += kPart) {
    const auto count =
        static_cast<int>(args.num_elements - begin < kPart ? args.num_elements - begin : kPart);
    __syncwarp();
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kLanes) {
      part[i] = {element(args.hidden, args.hidden_dtype, row + begin + i),
                 element(args.gate, args.gate_dtype, begin + i)};
    }
    __syncwarp();
    for (int i = 0; i < count; ++i) sum = fmaf(part[i].x, part[i].y, sum);
  }
  if (threadIdx.x == 0) args.weights[blockIdx.x] = sigmoid(sum);
}

template <typename Element>
void launch_weigh(const WeighRowsArgs& args, Stream stream) {
  constexpr std::int64_t kElementsOfThread = 8;
  constexpr std::int64_t kMaxBlocks = 0xFFFF;
  const std::int64_t parts = cdiv<std::int64_t>(args.hidden, kThreads * kElementsOfThread);
  const dim3 blocks(static_cast<unsigned>(args.num_tokens),
                    static_cast<unsigned>(std::min(parts, kMaxBlocks)));
  weigh_rows_kernel<Element><<<blocks, kThreads, 0, stream.get()>>>(args);
  check_launch("weigh_rows_kernel");
}

}  // namespace

void weigh_rows(const WeighRowsArgs& args, Stream stream) {
  if (args.num_tokens == 0 || args.hidden == 0) return;
  switch (args.dtype) {
    case DType::kBF16: return launch_weigh<BF16>(args, stream);
    case DType::kF16: return launch_weigh<F16>(args, stream);
    default: return launch_weigh<F32>(args, stream);
  }
}

void gate_weights(const GateWeightsArgs& args, Stream stream) {
  if (args.num_tokens == 0) return;
  gate_weights_kernel<<<static_cast<unsigned>(args.num_tokens), kLanes, 0, stream.get()>>>(args);
  check_launch("gate_weights_kernel");
}

}  // namespace switchyard::cuda
