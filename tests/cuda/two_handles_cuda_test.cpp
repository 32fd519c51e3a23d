// SPDX-License-Identifier: Apache-2.0
//
// Several handles at once: kernels of several streams that start in another order on every rank
// must not keep each other from starting, and a second in-flight slot takes memory when it is used
// first.

#include <algorithm>

#include "batch_of_ones.h"
#include "blocking_kernels.h"
#include "exchange_rank.h"
#include "gpu.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using test::BatchOfOnes;
using test::CudaGraph;
using test::fault_config;
using test::gpu_of;
using test::run_ranks;

constexpr std::int64_t kLateUs = 200'000;  // the other stream's kernel has started by then

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
    BatchOfOnes a(config, exchange.device());
    BatchOfOnes b(config, exchange.device());
    cuda::DeviceBuffer words(2 * sizeof(std::uint32_t));
    const auto be_late = [&](const BatchOfOnes& batch) {
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

// More than kernels find room for at once.
TEST_F(TwoHandlesTest, StreamsMayBeAsManyAsHandles) {
  if (test::num_gpus() < 2) GTEST_SKIP() << "one rank waits for nobody";
  run_ranks(std::min(test::num_gpus(), 8), [](const Group& group) {
    const cuda::DeviceGuard guard(group.rank());
    ExchangeConfig config = fault_config();
    config.max_in_flight = 64;
    Exchange exchange(group, config, options_of(group));
    test::run_in_streams_of_their_own(exchange, group);
  });
}

TEST_F(TwoHandlesTest, SecondSlotTakesMemoryWhenUsed) {
  if (test::num_gpus() < 2) GTEST_SKIP() << "ranks that share a GPU take all memory at once";
  run_ranks(2, [](const Group& group) {
    const cuda::DeviceGuard guard(group.rank());
    const ExchangeConfig config = two_handles(16);
    Exchange exchange(group, config, options_of(group));
    BatchOfOnes a(config, exchange.device());
    BatchOfOnes b(config, exchange.device());
    const ExchangeMemory one = exchange.memory();
    for (BatchOfOnes* batch : {&a, &b}) {
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
