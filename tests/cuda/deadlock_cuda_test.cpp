// SPDX-License-Identifier: Apache-2.0
//
// Exchange kernels that get few SMs, or start before their input is written, must still end with
// the right bits. Each rank has a GPU of its own, because ranks that share one need SMs at the same
// time. Every token goes to two experts that return it unchanged, so outputs are twice the tokens.

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "blocking_kernels.h"
#include "core/clock.h"
#include "core/random.h"
#include "exchange_rank.h"
#include "gpu.h"
#include "heap/stream_queues.h"
#include "quant/bf16.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using namespace test;

constexpr std::int64_t kBlockerMs = 20'000;  // longer than the timeout of the kernels

ExchangeOptions options_for(int num_ctas = 0, bool programmatic = false) {
  ExchangeOptions options;
  options.num_ctas = num_ctas;
  options.programmatic_launch = programmatic;
  options.timeout_ms = 8'000;
  return options;
}

ExchangeConfig config_for(Layout layout, std::int64_t max_tokens) {
  ExchangeConfig config = test::fault_config(layout);
  config.num_experts = 16;
  config.max_tokens_per_rank = max_tokens;
  return config;
}

std::vector<std::uint16_t> make_tokens(const Group& group, std::int64_t count, int call) {
  std::vector<std::uint16_t> tokens(static_cast<std::size_t>(count));
  const auto seed = static_cast<std::uint64_t>(100 * call + group.rank());
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    tokens[i] = bf16_from_f32(static_cast<float>(random_uniform(seed, i)) - 0.5f);
  }
  return tokens;
}

// A rank with tokens of its own. Construct it before kernels run.
class BlockedRank {
 public:
  BlockedRank(const Group& group, const ExchangeConfig& config, const ExchangeOptions& options)
      : group_(group),
        release_(64),
        started_(sizeof(std::uint32_t)),
        rank_(group, config, options) {
    cuda::check_cuda(cudaMemset(started_.data(), 0, started_.size_bytes()), "cudaMemset");
    const std::int32_t num_experts = config.num_experts;
    rank_.set_ids([&](std::int64_t token, std::int64_t k) {
      return (token + k * num_experts / 2) % num_experts;  // on two ranks if there are two
    });
    // Token-major: with a single rank each token has one row.
    factor_ = config.layout == Layout::kCompact && group.size() == 1 ? 1.0f : 2.0f;
    set_tokens(0);
  }

  ExchangeRank& rank() { return rank_; }
  void set_tokens(int call) {
    const TensorView to = rank_.tokens();
    tokens_ = make_tokens(group_, to.num_elements(), call);
    cuda::check_cuda(cudaMemcpy(to.data(), tokens_.data(), to.num_bytes(), cudaMemcpyHostToDevice),
                     "up");
    cuda::check_cuda(cudaMemset(rank_.output().data(), 0xFF, rank_.output().num_bytes()), "poison");
    cuda::check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "up");
  }

  /// From here on other streams have `num_spared` SMs.
  void start_blocker(int num_spared, std::int64_t max_ms = kBlockerMs) {
    int num_sms = 0;
    cuda::check_cuda(
        cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, group_.rank()), "sms");
    launch_blocker(num_spared, release_.as<std::uint32_t>(), max_ms, started_.as<std::uint32_t>(),
                   blocker_stream_.get());
    std::uint32_t started = 0;
    const Deadline deadline = Deadline::after_ms(5'000);
    while (started != static_cast<std::uint32_t>(num_sms) && !deadline.expired()) {
      cuda::check_cuda(cudaMemcpyAsync(&started, started_.data(), sizeof(started),
                                       cudaMemcpyDeviceToHost, look_stream_.get()),
                       "look");
      cuda::check_cuda(cudaStreamSynchronize(look_stream_.get()), "look");
    }
    EXPECT_EQ(started, static_cast<std::uint32_t>(num_sms));
    group_.barrier();
  }
  bool is_blocker_busy() const {
    return cudaStreamQuery(blocker_stream_.get()) == cudaErrorNotReady;
  }
  void end_blocker() {
    *release_.as<volatile std::uint32_t>() = 1;
    cuda::check_cuda(cudaStreamSynchronize(blocker_stream_.get()), "blocker");
    *release_.as<volatile std::uint32_t>() = 0;
    cuda::check_cuda(cudaMemset(started_.data(), 0, started_.size_bytes()), "cudaMemset");
  }

  void expect_doubled(const void* on_gpu, const std::vector<std::uint16_t>& tokens) const {
    std::vector<std::uint16_t> output(tokens.size());
    cuda::check_cuda(cudaMemcpy(output.data(), on_gpu, 2 * output.size(), cudaMemcpyDeviceToHost),
                     "down");
    for (std::size_t i = 0; i < output.size(); ++i) {
      ASSERT_EQ(output[i], bf16_from_f32(factor_ * f32_from_bf16(tokens[i])))
          << "rank " << group_.rank() << ", element " << i;
    }
  }
  void expect_doubled() const { expect_doubled(rank_.output().data(), tokens_); }

 private:
  Group group_;
  cuda::PinnedBuffer release_;
  cuda::DeviceBuffer started_;
  cuda::OwnedStream blocker_stream_;
  cuda::OwnedStream look_stream_;
  std::vector<std::uint16_t> tokens_;
  float factor_ = 2.0f;
  ExchangeRank rank_;
};

class DeadlockTest : public testing::TestWithParam<Layout> {
 protected:
  void SetUp() override { REQUIRE_GPU(); }
  static void run(const std::function<void(const Group&)>& body) {
    run_ranks(std::min(test::num_gpus(), 8), [&](const Group& group) {
      const cuda::DeviceGuard guard(group.rank());
      body(group);
    });
  }
};

// For 700 tokens the grid has hundreds of CTAs, of which two or four fit at once.
TEST_P(DeadlockTest, OneFreeSmIsEnough) {
  run([](const Group& group) {
    for (const std::int64_t num_tokens : {1, 64, 700}) {
      BlockedRank blocked(group, config_for(GetParam(), num_tokens), options_for());
      blocked.start_blocker(1);
      for (int call = 0; call < 5; ++call) blocked.rank().pair();
      blocked.rank().finish();
      EXPECT_TRUE(blocked.is_blocker_busy());
      blocked.end_blocker();
      blocked.expect_doubled();
      group.barrier();
    }
  });
}

// One rank has little room, so its peers wait for it for a long time.
TEST_P(DeadlockTest, OnlyOneRankIsHeldUp) {
  run([](const Group& group) {
    BlockedRank blocked(group, config_for(GetParam(), 64), options_for());
    blocked.start_blocker(group.rank() == 0 ? 1 : 100);
    for (int call = 0; call < 20; ++call) blocked.rank().pair();
    blocked.rank().finish();
    blocked.end_blocker();
    blocked.expect_doubled();
    group.barrier();
  });
}

// Nothing fits until the blocker ends.
TEST_P(DeadlockTest, WaitsForAGpuThatIsFull) {
  run([](const Group& group) {
    BlockedRank blocked(group, config_for(GetParam(), 64), options_for());
    blocked.start_blocker(0, 5 + 20 * group.rank());
    for (int call = 0; call < 5; ++call) blocked.rank().pair();
    blocked.rank().finish();
    blocked.end_blocker();
    blocked.expect_doubled();
    group.barrier();
  });
}

TEST_P(DeadlockTest, ThreeCtasAreEnough) {
  run([](const Group& group) {
    BlockedRank blocked(group, config_for(GetParam(), 2500), options_for(3));
    for (int call = 0; call < 3; ++call) blocked.rank().pair();
    blocked.rank().finish();
    blocked.expect_doubled();
    blocked.rank().capture(group);
    blocked.set_tokens(1);
    group.barrier();
    blocked.rank().replay();
    blocked.rank().finish();
    blocked.expect_doubled();
    group.barrier();
  });
}

TEST(QueuesTest, StreamsOfSharedGpusAreCounted) {
  EXPECT_EQ(queue_obstacle(1, nullptr), "");
  EXPECT_EQ(queue_obstacle(8, nullptr), "");
  EXPECT_EQ(queue_obstacle(16, "16"), "");
  EXPECT_EQ(queue_obstacle(12, nullptr),
            "12 threads share a GPU, but it takes kernels of 8 streams of a process at once; set "
            "CUDA_DEVICE_MAX_CONNECTIONS to 12 before CUDA is used, or start ranks as processes");
  EXPECT_NE(queue_obstacle(9, "0"), "");
  EXPECT_NE(queue_obstacle(33, "32"), "");
  EXPECT_EQ(queue_obstacle(33, "32").find("set CUDA"), std::string::npos);
}

// With too few hardware queues, kernels of nine streams are serialized behind one another.
TEST(QueuesTest, RanksThatShareAGpuNeedAQueueEach) {
  REQUIRE_GPU();
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  const auto nine = [](const Group& group) {
    const cuda::DeviceGuard guard(0);
    const Exchange exchange(group, test::fault_config(), {.device = Device::cuda(0)});
  };
  const Error error = test::error_of([&] { run_ranks(9, nine); });
  EXPECT_EQ(error.code(), Errc::kNotAvailable);
  EXPECT_NE(std::string(error.what()).find("set CUDA_DEVICE_MAX_CONNECTIONS to 9"),
            std::string::npos)
      << error.what();
}

// Both limits at once: at most three CTAs, and one free SM.
TEST_P(DeadlockTest, ThreeCtasOnOneSm) {
  run([](const Group& group) {
    BlockedRank blocked(group, config_for(GetParam(), 300), options_for(3));
    blocked.start_blocker(1);
    for (int call = 0; call < 3; ++call) blocked.rank().pair();
    blocked.rank().finish();
    blocked.end_blocker();
    blocked.expect_doubled();
    group.barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(All, DeadlockTest,
                         testing::Values(Layout::kBatched, Layout::kExpanded, Layout::kCompact),
                         [](const auto& each) { return std::string(name_of(each.param)); });

// Programmatic dependent launch: dispatch sees what the preceding kernel writes at its very end,
// and the following kernel sees the sums.
class LateWriteTest : public testing::Test {
 protected:
  void SetUp() override { REQUIRE_GPU(); }
};

class LateRank {
 public:
  explicit LateRank(const Group& group)
      : config_(config_for(Layout::kExpanded, 64)),
        late_tokens_(bytes()),
        late_ids_(static_cast<std::size_t>(config_.max_tokens_per_rank * config_.num_topk) * 8),
        copied_(bytes()),
        blocked_(group, config_, options_for(0, true)),
        group_(group) {
    std::vector<std::int64_t> ids(late_ids_.size_bytes() / 8);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<std::int64_t>(i) % config_.num_experts;
    }
    cuda::check_cuda(
        cudaMemcpy(late_ids_.data(), ids.data(), late_ids_.size_bytes(), cudaMemcpyHostToDevice),
        "up");
  }

  /// Sets what a premature reader would find: other tokens, and no experts.
  void prepare(int call) {
    blocked_.set_tokens(1000 + call);
    blocked_.rank().set_ids([](std::int64_t, std::int64_t) { return -1; });
    tokens_ = make_tokens(group_, static_cast<std::int64_t>(bytes() / 2), call);
    cuda::check_cuda(
        cudaMemcpy(late_tokens_.data(), tokens_.data(), bytes(), cudaMemcpyHostToDevice), "up");
    cuda::check_cuda(cudaMemset(copied_.data(), 0xFF, bytes()), "poison");
    cuda::check_cuda(cudaStreamSynchronize(cudaStreamLegacy), "up");
    group_.barrier();
  }
  void enqueue() {
    const cudaStream_t stream = blocked_.rank().stream().get();
    const TensorView tokens = blocked_.rank().tokens();
    const TensorView ids = blocked_.rank().ids();
    launch_late_copy({tokens.data(), late_tokens_.data(), bytes()},
                     {ids.data(), late_ids_.data(), late_ids_.size_bytes()}, 300, false, stream);
    blocked_.rank().pair();
    launch_late_copy({copied_.data(), blocked_.rank().output().data(), bytes()}, {}, 0, true,
                     stream);
  }
  void expect() {
    blocked_.rank().finish();
    blocked_.expect_doubled(copied_.data(), tokens_);
    blocked_.expect_doubled(blocked_.rank().output().data(), tokens_);
    group_.barrier();
  }
  ExchangeRank& rank() { return blocked_.rank(); }

 private:
  std::size_t bytes() const {
    return static_cast<std::size_t>(config_.max_tokens_per_rank * config_.hidden) * 2;
  }

  ExchangeConfig config_;
  cuda::DeviceBuffer late_tokens_;
  cuda::DeviceBuffer late_ids_;
  cuda::DeviceBuffer copied_;
  BlockedRank blocked_;
  Group group_;
  std::vector<std::uint16_t> tokens_;
};

TEST_F(LateWriteTest, IsSeenByDispatchAndSumsByTheKernelBehind) {
  run_ranks(std::min(test::num_gpus(), 8), [](const Group& group) {
    const cuda::DeviceGuard guard(group.rank());
    LateRank late(group);
    for (int call = 0; call < 10; ++call) {
      late.prepare(call);
      late.enqueue();
      late.expect();
    }
  });
}

TEST_F(LateWriteTest, IsSeenInAGraph) {
  run_ranks(std::min(test::num_gpus(), 8), [](const Group& group) {
    const cuda::DeviceGuard guard(group.rank());
    LateRank late(group);
    late.rank().capture(group, [&] { late.enqueue(); });
    for (int call = 0; call < 10; ++call) {
      late.prepare(call);
      late.rank().replay();
      late.expect();
    }
  });
}

}  // namespace
}  // namespace switchyard
