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

/// An array in the memory of the current GPU.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values) : size_(values.size()) {
    check_cuda(cudaMalloc(&data_, size_ * sizeof(T)));
    check_cuda(cudaMemcpy(data_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  sy::TensorView view(sy::DType dtype, std::initializer_list<std::int64_t> shape) const {
    return {data_, dtype, shape};
  }
  std::vector<T> values() const {
    std::vector<T> values(size_);
    check_cuda(cudaMemcpy(values.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }

 private:
  std::size_t size_ = 0;
  void* data_ = nullptr;
};

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

bool is_right(int rank, const std::vector<float>& output) {
  for (int i = 0; i < kTokens * kHidden; ++i) {
    const int token = i / kHidden;
    const float want = kWeightSums[static_cast<std::size_t>(token)] * value_of(rank, token);
    if (output[static_cast<std::size_t>(i)] != want) return false;
  }
  return true;
}

bool run_rank(const sy::Group& group, int num_gpus) {
  check_cuda(cudaSetDevice(group.rank() % num_gpus));
  cudaStream_t stream{};
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));

  // All memory is taken before work is queued, and freed after the exchange, which waits for all
  // kernels: ranks that share a GPU would wait for each other.
  const DeviceArray tokens(tokens_of(group.rank()));
  const DeviceArray topk_ids(kTopkIds);
  const DeviceArray topk_weights(kTopkWeights);
  const DeviceArray output(std::vector<float>(std::size_t{kTokens} * kHidden));
  sy::Exchange exchange(
      group,
      {.num_experts = 4, .num_topk = kTopk, .hidden = kHidden, .max_tokens_per_rank = kTokens});
  group.barrier();

  // Nothing here waits for the GPU; both calls may as well be captured in a CUDA graph.
  const sy::Dispatched received =
      exchange.dispatch(tokens.view(sy::DType::kBF16, {kTokens, kHidden}),
                        topk_ids.view(sy::DType::kI32, {kTokens, kTopk}),
                        topk_weights.view(sy::DType::kF32, {kTokens, kTopk}), stream);
  // Experts would read received.rows and received.num_rows here, in the same stream.
  exchange.combine(received.handle, received.rows, output.view(sy::DType::kF32, {kTokens, kHidden}),
                   stream);

  check_cuda(cudaStreamSynchronize(stream));
  exchange.check();  // throws what kernels found: a peer that did not come, ids out of range
  check_cuda(cudaStreamDestroy(stream));
  std::printf("rank %d: heap %s%s\n", group.rank(), exchange.heap(),
              exchange.is_shared_gpu() ? ", a GPU shared with other ranks" : "");
  const bool result = is_right(group.rank(), output.values());
  group.barrier();
  return result;
}

}  // namespace

int main() {
  int num_gpus = 0;
  if (cudaGetDeviceCount(&num_gpus) != cudaSuccess || num_gpus == 0) {
    std::printf("no GPU on this machine, nothing to show\n");
    return 0;
  }
  std::array<bool, kRanks> results{};
  sy::run_local_ranks(kRanks, [&](const sy::Group& group) {
    results[static_cast<std::size_t>(group.rank())] = run_rank(group, num_gpus);
  });
  std::printf(results[0] && results[1] ? "every element is right\n" : "elements are wrong\n");
  return results[0] && results[1] ? 0 : 1;
}
