// SPDX-License-Identifier: Apache-2.0
//
// Times dispatch and combine between GPUs of this machine: one thread per GPU, a captured graph of
// many calls, all GPUs started by one flag; the slowest rank counts. The tests (tests/cuda) check
// the bits; here each run only checks that nothing failed.
//
// usage: cuda_exchange_bench [--pdl] [--per-expert] [RANKS [TOKENS...]]
//   --pdl         programmatic dependent launch
//   --per-expert  exact sums
#include "switchyard/exchange.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/random.h"
#include "cuda/base/check.h"
#include "cuda/base/memory.h"
#include "gate.h"
#include "quant/bf16.h"
#include "run_bench.h"

namespace switchyard {
namespace {

constexpr int kInputs = 8;
constexpr int kReplays = 31;

struct Shape {
  std::int64_t hidden = 7168;
  int num_topk = 8;
  int experts_per_rank = 32;
  std::int64_t num_tokens = 1;
  Reduce reduce = Reduce::kPerRank;
  bool programmatic = false;
  QuantScheme scheme = schemes::kFp8Block;
};

struct Timing {
  double pair_us = 0;
  double dispatch_us = 0;
};

class RankBench {
 public:
  /// On the thread's current GPU, `device`.
  RankBench(const Group& group, const Shape& shape, Device device)
      : shape_(shape),
        group_(group),
        device_(device),
        exchange_(group, config(group, shape), options(shape, device)) {
    make_inputs();
  }

  /// The time of each replay, in us per call.
  std::vector<double> run(int num_calls, bool combines, cuda::PinnedBuffer& flag) {
    cudaGraphExec_t graph = capture(num_calls, combines);
    cudaEvent_t begin{};
    cudaEvent_t end{};
    cuda::check_cuda(cudaEventCreate(&begin), "event");
    cuda::check_cuda(cudaEventCreate(&end), "event");
    std::vector<double> times;
    for (int i = -3; i < kReplays; ++i) {
      if (group_.rank() == 0) *flag.as<volatile std::uint32_t>() = 0;
      cuda::check_cuda(cudaMemsetAsync(flush_.data(), i, flush_.size_bytes(), stream_.get()),
                       "flush");
      cuda::check_cuda(cudaStreamSynchronize(stream_.get()), "flush");
      group_.barrier();
      launch_gate(flag.as<std::uint32_t>(), stream_.get());
      cuda::check_cuda(cudaEventRecord(begin, stream_.get()), "event");
      cuda::check_cuda(cudaGraphLaunch(graph, stream_.get()), "graph");
      cuda::check_cuda(cudaEventRecord(end, stream_.get()), "event");
      group_.barrier();
      if (group_.rank() == 0) *flag.as<volatile std::uint32_t>() = 1;
      cuda::check_cuda(cudaStreamSynchronize(stream_.get()), "replay");
      exchange_.check();
      float ms = 0;
      cuda::check_cuda(cudaEventElapsedTime(&ms, begin, end), "event");
      if (i >= 0) times.push_back(1000.0 * static_cast<double>(ms) / num_calls);
      group_.barrier();
    }
    cudaGraphExecDestroy(graph);
    return times;
  }

 private:
  static ExchangeConfig config(const Group& group, const Shape& shape) {
    ExchangeConfig config;
    config.num_experts = shape.experts_per_rank * group.size();
    config.num_topk = shape.num_topk;
    config.hidden = shape.hidden;
    config.max_tokens_per_rank = shape.num_tokens;
    config.layout = Layout::kBatched;
    config.scheme = shape.scheme;
    config.reduce = shape.reduce;
    return config;
  }
  static ExchangeOptions options(const Shape& shape, Device device) {
    ExchangeOptions options;
    options.device = device;
    options.programmatic_launch = shape.programmatic;
    return options;
  }

  void make_inputs() {
    const auto tokens = static_cast<std::size_t>(shape_.num_tokens);
    const auto hidden = static_cast<std::size_t>(shape_.hidden);
    const auto topk = static_cast<std::size_t>(shape_.num_topk);
    const int num_experts = shape_.experts_per_rank * group_.size();
    std::vector<std::uint16_t> x(tokens * hidden);
    std::vector<std::int64_t> ids(tokens * topk);
    std::vector<float> weights(tokens * topk);
    for (int i = 0; i < kInputs; ++i) {
      const auto seed = static_cast<std::uint64_t>(100 * group_.rank() + i);
      for (std::size_t n = 0; n < x.size(); ++n)
        x[n] = bf16_from_f32(static_cast<float>(random_uniform(seed, n)) - 0.5f);
      for (std::size_t t = 0; t < tokens; ++t) {
        std::vector<bool> used(static_cast<std::size_t>(num_experts));
        for (std::size_t k = 0; k < topk; ++k) {
          auto id =
              random_bits(seed + 7777, t * topk + k) % static_cast<std::uint64_t>(num_experts);
          while (used[id]) id = (id + 1) % static_cast<std::uint64_t>(num_experts);
          used[id] = true;
          ids[t * topk + k] = static_cast<std::int64_t>(id);
          weights[t * topk + k] = static_cast<float>(random_uniform(seed + 8888, t * topk + k));
        }
      }
      tokens_.push_back(upload(x.data(), x.size() * 2));
      ids_.push_back(upload(ids.data(), ids.size() * 8));
      weights_.push_back(upload(weights.data(), weights.size() * 4));
    }
    output_ = cuda::DeviceBuffer(x.size() * 2);
    const auto rows = static_cast<std::size_t>(shape_.experts_per_rank) *
                      static_cast<std::size_t>(group_.size()) * tokens;
    results_ = cuda::DeviceBuffer(rows * hidden * 2);
    cuda::check_cuda(cudaMemset(results_.data(), 0x3C, results_.size_bytes()), "results");
    flush_ = cuda::DeviceBuffer(std::size_t{192} << 20);
    cuda::check_cuda(cudaDeviceSynchronize(), "inputs");
  }
  static cuda::DeviceBuffer upload(const void* from, std::size_t bytes) {
    cuda::DeviceBuffer buffer(bytes);
    cuda::check_cuda(cudaMemcpy(buffer.data(), from, bytes, cudaMemcpyHostToDevice), "up");
    return buffer;
  }

  cudaGraphExec_t capture(int num_calls, bool combines) {
    cudaGraph_t graph{};
    cudaGraphExec_t exec{};
    cuda::check_cuda(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal),
                     "capture");
    const std::int64_t t = shape_.num_tokens;
    const std::int64_t rows = std::int64_t{shape_.experts_per_rank} * group_.size() * t;
    const Stream stream = Stream::cuda(stream_.get(), device_.index);
    for (int i = 0; i < num_calls; ++i) {
      const auto n = static_cast<std::size_t>(i % kInputs);
      const Dispatched got = exchange_.dispatch(
          TensorView(tokens_[n].data(), DType::kBF16, {t, shape_.hidden}, device_),
          TensorView(ids_[n].data(), DType::kI64, {t, shape_.num_topk}, device_),
          TensorView(weights_[n].data(), DType::kF32, {t, shape_.num_topk}, device_), stream);
      if (combines) {
        exchange_.combine(
            got.handle, TensorView(results_.data(), DType::kBF16, {rows, shape_.hidden}, device_),
            TensorView(output_.data(), DType::kBF16, {t, shape_.hidden}, device_), stream);
      } else {
        exchange_.release(got.handle);
      }
    }
    cuda::check_cuda(cudaStreamEndCapture(stream_.get(), &graph), "capture");
    cuda::check_cuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    cudaGraphDestroy(graph);
    return exec;
  }

  Shape shape_;
  Group group_;
  Device device_;
  cuda::OwnedStream stream_;
  std::vector<cuda::DeviceBuffer> tokens_, ids_, weights_;
  cuda::DeviceBuffer output_, results_, flush_;
  Exchange exchange_;  // last: it ends before its memory
};

double slowest_median(const std::vector<std::vector<double>>& by_rank) {
  std::vector<double> slowest;
  for (std::size_t i = 0; i < by_rank[0].size(); ++i) {
    double most = 0;
    for (const auto& times : by_rank) most = std::max(most, times[i]);
    slowest.push_back(most);
  }
  std::nth_element(slowest.begin(),
                   slowest.begin() + static_cast<std::ptrdiff_t>(slowest.size() / 2),
                   slowest.end());
  return slowest[slowest.size() / 2];
}

Timing measure(int num_ranks, const Shape& shape) {
  cuda::PinnedBuffer flag(64);
  std::vector<std::vector<double>> pairs(static_cast<std::size_t>(num_ranks));
  std::vector<std::vector<double>> dispatches(static_cast<std::size_t>(num_ranks));
  run_local_ranks(num_ranks, [&](const Group& group) {
    int num_gpus = 1;
    cuda::check_cuda(cudaGetDeviceCount(&num_gpus), "gpus");
    const Device device = Device::cuda(group.rank() % num_gpus);
    cuda::check_cuda(cudaSetDevice(device.index), "set");
    RankBench bench(group, shape, device);
    const auto r = static_cast<std::size_t>(group.rank());
    pairs[r] = bench.run(20, true, flag);
    dispatches[r] = bench.run(20, false, flag);
  });
  return {slowest_median(pairs), slowest_median(dispatches)};
}

void run(int argc, char** argv) {
  Shape asked;
  std::vector<std::int64_t> numbers;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--pdl") {
      asked.programmatic = true;
    } else if (argument == "--per-expert") {
      asked.reduce = Reduce::kPerExpert;
    } else {
      numbers.push_back(std::atoi(argv[i]));
    }
  }
  const int num_ranks = numbers.empty() ? 2 : static_cast<int>(numbers[0]);
  std::vector<std::int64_t> tokens(numbers.begin() + (numbers.empty() ? 0 : 1), numbers.end());
  if (tokens.empty()) tokens = {1, 8, 32, 64, 128};
  for (const std::int64_t t : tokens) {
    Shape shape = asked;
    shape.num_tokens = t;
    const Timing time = measure(num_ranks, shape);
    std::printf("ranks %d T %4ld pair %7.2f dispatch %7.2f combine %7.2f us\n", num_ranks,
                static_cast<long>(t), time.pair_us, time.dispatch_us,
                time.pair_us - time.dispatch_us);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  return switchyard::run_bench("cuda_exchange_bench", [&] { switchyard::run(argc, argv); });
}
