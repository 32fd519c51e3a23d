// SPDX-License-Identifier: Apache-2.0
//
// Two ranks, as threads, exchange tokens between their GPUs, or through one GPU if there is no
// second: dispatch, experts that return their input, combine.

#include <array>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cuda_runtime_api.h>
#include <stdexcept>
#include <vector>

#include <switchyard/exchange.h>

namespace sy = switchyard;

namespace {

constexpr int kRanks = 2;
constexpr int kTokens = 3;
constexpr int kTopk = 2;
constexpr int kHidden = 1024;

// Experts 0 and 1 live on rank 0, 2 and 3 on rank 1. -1 means no expert.
const std::vector<std::int32_t> kTopkIds = {0, 3, 2, 1, 3, -1};
const std::vector<float> kTopkWeights = {0.5f, 0.25f, 0.5f, 0.5f, 0.75f, 0.25f};
constexpr std::array<float, kTokens> kWeightSums = {0.75f, 1.0f, 0.75f};

void check_cuda(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

// All elements of a token are the same number, which fits bf16, the upper half of a float.
float value_of(int rank, int token) { return static_cast<float>(10 * rank + token + 1); }

std::vector<std::uint16_t> tokens_of(int rank) {
  std::vector<std::uint16_t> tokens;
  for (int t = 0; t < kTokens; ++t) {
    const auto bits = std::bit_cast<std::uint32_t>(value_of(rank, t));
    tokens.insert(tokens.end(), kHidden, static_cast<std::uint16_t>(bits >> 16));
  }
  return tokens;
}

bool is_right(int rank, const sy::Tensor& output) {
  for (int i = 0; i < kTokens * kHidden; ++i) {
    const int token = i / kHidden;
    const float want = kWeightSums[static_cast<std::size_t>(token)] * value_of(rank, token);
    if (output.as<float>()[i] != want) return false;
  }
  return true;
}

bool run_rank(const sy::Group& group, sy::Device gpu) {
  // A stream of its own: in one that is shared, ranks on one GPU would wait for each other.
  check_cuda(cudaSetDevice(gpu.index));
  cudaStream_t own_stream{};
  check_cuda(cudaStreamCreateWithFlags(&own_stream, cudaStreamNonBlocking));
  const sy::Stream stream = sy::Stream::cuda(own_stream, gpu.index);

  // All memory is allocated before kernels run and freed after the exchange, which waits for all
  // kernels: ranks that share a GPU would wait for each other.
  const std::vector<std::uint16_t> values = tokens_of(group.rank());
  const sy::Tensor tokens =
      sy::copy_to(sy::TensorView(values.data(), sy::DType::kBF16, {kTokens, kHidden}), gpu);
  const sy::Tensor topk_ids =
      sy::copy_to(sy::TensorView::of(kTopkIds.data(), {kTokens, kTopk}), gpu);
  const sy::Tensor topk_weights =
      sy::copy_to(sy::TensorView::of(kTopkWeights.data(), {kTokens, kTopk}), gpu);
  const sy::Tensor output(sy::DType::kF32, {kTokens, kHidden}, gpu);
  sy::Exchange exchange(
      group,
      {.num_experts = 4, .num_topk = kTopk, .hidden = kHidden, .max_tokens_per_rank = kTokens},
      {.device = gpu});
  group.barrier();

  // Nothing here waits for the GPU; both calls may as well be captured in a CUDA graph.
  const sy::Dispatched received = exchange.dispatch(tokens, topk_ids, topk_weights, stream);
  // Experts would read received.experts here, in the same stream.
  exchange.combine(received.handle, received.experts.rows, output, stream);

  const bool result = is_right(group.rank(), output.to(sy::Device::cpu(), stream));  // waits
  exchange.check();  // throws what kernels found: a peer that did not come, ids out of range
  check_cuda(cudaStreamDestroy(own_stream));
  std::printf("rank %d: heap %s%s\n", group.rank(), exchange.heap(),
              exchange.is_shared_gpu() ? ", a GPU shared with other ranks" : "");
  group.barrier();
  return result;
}

}  // namespace

int main() {
  if (sy::num_cuda_devices() == 0) {
    std::printf("no GPU on this machine, nothing to show\n");
    return 0;
  }
  std::array<bool, kRanks> results{};
  sy::run_local_ranks(kRanks, [&](const sy::Group& group) {
    results[static_cast<std::size_t>(group.rank())] = run_rank(group, sy::default_gpu(group));
  });
  std::printf(results[0] && results[1] ? "every element is right\n" : "elements are wrong\n");
  return results[0] && results[1] ? 0 : 1;
}
