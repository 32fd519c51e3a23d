// SPDX-License-Identifier: Apache-2.0
//
// Two handles at once: kernels of two streams that start in another order on every rank must not
// keep each other from starting, and a second in-flight slot takes memory when it is used first.

#include <algorithm>
#include <vector>

#include "blocking_kernels.h"
#include "exchange_rank.h"
#include "gpu.h"
#include "quant/bf16.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using test::CudaGraph;
using test::fault_config;
using test::gpu_of;
using test::run_ranks;

constexpr std::int64_t kLateUs = 200'000;  // the other stream's kernel has started by then
constexpr int kOneBits = 0x3F80;           // of bf16

ExchangeConfig two_handles(std::int64_t max_tokens) {
  ExchangeConfig config = fault_config();
  config.hidden = 7168;
  config.max_tokens_per_rank = max_tokens;
  config.max_in_flight = 2;
  return config;
}

ExchangeOptions options_of(const Group& group) {
  ExchangeOptions options;
  options.device = gpu_of(group.rank());
  options.timeout_ms = 5'000;
  return options;
}

// Tokens of ones, each to two experts, so that outputs are twos.
class Batch {
 public:
  Batch(const ExchangeConfig& config, Device device)
      : device_(device),
        tokens_(DType::kBF16, {config.max_tokens_per_rank, config.hidden}, device),
        output_(DType::kBF16, {config.max_tokens_per_rank, config.hidden}, device),
        ids_(DType::kI32, {config.max_tokens_per_rank, config.num_topk}, device),
        stream_(test::make_stream(device)) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(ids_.view().num_elements()));
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<std::int32_t>(i) % config.num_experts;
    }
    const std::vector<std::uint16_t> ones(static_cast<std::size_t>(tokens_.view().num_elements()),
                                          kOneBits);
    cuda::check_cuda(cudaMemcpy(ids_.data(), ids.data(), 4 * ids.size(), cudaMemcpyHostToDevice),
                     "ids");
    cuda::check_cuda(
        cudaMemcpy(tokens_.data(), ones.data(), 2 * ones.size(), cudaMemcpyHostToDevice), "tokens");
    cuda::check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "up");
  }

  Stream stream() const { return Stream::cuda(stream_.get(), device_.index); }
  void dispatch(Exchange& exchange, Stream stream) {
    got_ = exchange.dispatch(tokens_, ids_, {}, stream);
  }
  void combine(Exchange& exchange, Stream stream) {
    exchange.combine(got_.handle, got_.experts.rows, output_, stream);
  }
  void finish(const Exchange& exchange) {
    cuda::check_cuda(cudaStreamSynchronize(stream_.get()), "kernels");
    exchange.check();
    std::vector<std::uint16_t> output(static_cast<std::size_t>(output_.view().num_elements()));
    cuda::check_cuda(
        cudaMemcpy(output.data(), output_.data(), 2 * output.size(), cudaMemcpyDeviceToHost),
        "output");
    const std::uint16_t two = bf16_from_f32(2.0f);
    EXPECT_EQ(std::count(output.begin(), output.end(), two),
              static_cast<std::ptrdiff_t>(output.size()));
  }

 private:
  Device device_;
  Tensor tokens_;
  Tensor output_;
  Tensor ids_;
  cuda::OwnedStream stream_;
  Dispatched got_;
};

class TwoHandlesTest : public testing::Test {
 protected:
  void SetUp() override { REQUIRE_GPU(); }
};

// Rank 0 starts the first handle's kernel, which could fill its GPU; the others start that of the
// second handle.
TEST_F(TwoHandlesTest, StreamsMayRunInAnyOrder) {
  if (test::num_gpus() < 2) GTEST_SKIP() << "ranks that share a GPU get shares in any event";
  run_ranks(std::min(test::num_gpus(), 8), [](const Group& group) {
    const cuda::DeviceGuard guard(group.rank());
    const ExchangeConfig config = two_handles(4096);
    Exchange exchange(group, config, options_of(group));
    Batch a(config, exchange.device());
    Batch b(config, exchange.device());
    cuda::DeviceBuffer words(2 * sizeof(std::uint32_t));
    const auto be_late = [&](const Batch& batch) {
      test::launch_late_copy({words.data(), words.data() + 4, 4}, {}, kLateUs, false,
                             batch.stream().get());
    };
    for (int round = 0; round < 2; ++round) {  // memory for b is taken in the first
      group.barrier();
      be_late(group.rank() == 0 ? b : a);
      a.dispatch(exchange, a.stream());
      b.dispatch(exchange, b.stream());
      a.combine(exchange, a.stream());
      b.combine(exchange, b.stream());
      a.finish(exchange);
      b.finish(exchange);
    }
  });
}

TEST_F(TwoHandlesTest, SecondSlotTakesMemoryWhenUsed) {
  if (test::num_gpus() < 2) GTEST_SKIP() << "ranks that share a GPU take all memory at once";
  run_ranks(2, [](const Group& group) {
    const cuda::DeviceGuard guard(group.rank());
    const ExchangeConfig config = two_handles(16);
    Exchange exchange(group, config, options_of(group));
    Batch a(config, exchange.device());
    Batch b(config, exchange.device());
    const ExchangeMemory one = exchange.memory();
    for (Batch* batch : {&a, &b}) {
      batch->dispatch(exchange, batch->stream());
      batch->combine(exchange, batch->stream());
      batch->finish(exchange);
    }
    EXPECT_EQ(exchange.memory().window_bytes, one.window_bytes);
    EXPECT_EQ(exchange.memory().receive_bytes, one.receive_bytes);
    // Both at once, for the first time while a stream is captured.
    const auto both = [&] {
      a.dispatch(exchange, a.stream());
      b.dispatch(exchange, a.stream());
      a.combine(exchange, a.stream());
      b.combine(exchange, a.stream());
    };
    CudaGraph graph(a.stream().get(), both);
    group.barrier();
    EXPECT_EQ(exchange.memory().window_bytes, 2 * one.window_bytes);
    EXPECT_EQ(exchange.memory().receive_bytes, 2 * one.receive_bytes);
    for (int round = 0; round < 3; ++round) graph.replay(a.stream().get());
    a.finish(exchange);
    b.finish(exchange);
  });
}

}  // namespace
}  // namespace switchyard
