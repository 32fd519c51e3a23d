// SPDX-License-Identifier: Apache-2.0
//
// GPU ranks of several hosts that are lost, hang, close or differ: nobody waits for ever. Some of
// the tests are also of kernels that must leave room for one another.

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <list>
#include <optional>
#include <signal.h>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "batch_of_ones.h"
#include "blocking_kernels.h"
#include "core/clock.h"
#include "exchange_rank.h"
#include "on_hosts.h"
#include "support/errors.h"
#include "support/observe.h"
#include "support/processes.h"
#include "support/shared.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr std::int64_t kTimeoutMs = 4000;
constexpr double kInTime = 20.0;  // seconds, the exit of processes included

enum class Calls { kEager, kReplays, kBoth };

// Runs pairs endlessly. `graph` outlives the exchange.
void exchange_on(const Group& group, ExchangeRank& rank, CudaGraph& graph, Calls calls,
                 std::atomic<int>& num_busy) {
  if (calls != Calls::kEager) {
    graph = CudaGraph(rank.stream().get(), [&] { rank.pair(); });
    group.barrier();
  }
  for (int round = 0;; ++round) {
    for (int i = 0; i < 4; ++i) {
      if (calls != Calls::kEager) graph.replay(rank.stream().get());
      if (calls != Calls::kReplays) rank.pair();
    }
    rank.finish();
    if (round == 2) ++num_busy;
  }
}

struct Fault {
  const char* name;
  Hosts hosts;
  int victim;
  int signal;
  Calls calls;
};

class HostsLossTest : public HostsTest {};
class HostsFaultTest : public HostsTest, public ::testing::WithParamInterface<Fault> {};

TEST_P(HostsFaultTest, RankIsNamedInTime) {
  const Fault& fault = GetParam();
  const auto num_ranks = static_cast<int>(fault.hosts.size());
  Shared<std::atomic<int>> num_busy;
  RankProcesses ranks(
      num_ranks,
      [&](const Group& group) {
        set_host(fault.hosts[static_cast<std::size_t>(group.rank())]);
        const cuda::DeviceGuard guard(gpu_of(group.rank()).index);
        CudaGraph graph;
        ExchangeRank rank(group, fault_config(), {.timeout_ms = kTimeoutMs});
        exchange_on(group, rank, graph, fault.calls, *num_busy);
      },
      options_of(fault.hosts, 30'000));
  wait_until(*num_busy, num_ranks);
  const std::int64_t start = now_ns();
  ranks.send_signal(fault.victim, fault.signal);
  for (int rank = 0; rank < num_ranks; ++rank) {
    if (rank == fault.victim) continue;
    const RankOutcome outcome = ranks.wait_for(rank);
    ASSERT_TRUE(outcome.error) << "signal " << outcome.signal << ": " << outcome.output;
    EXPECT_THAT(outcome.error->code(), AnyOf(Errc::kPeerLost, Errc::kTimeout));
    const auto names = HasSubstr("rank " + std::to_string(fault.victim));
    if (fault.hosts == kThreeAndOne && fault.signal == SIGSTOP) {  // rank 3 knows no better
      EXPECT_THAT(outcome.error->what(), AnyOf(names, HasSubstr("ranks 0-2")));
    } else {
      EXPECT_THAT(outcome.error->what(), names);
    }
  }
  EXPECT_LT(seconds_since(start), kInTime);
}

// Of 3 + 1 ranks the last has three communicators.
INSTANTIATE_TEST_SUITE_P(
    All, HostsFaultTest,
    ::testing::Values(Fault{"killed", kTwoTimesTwo, 1, SIGKILL, Calls::kEager},
                      Fault{"killed_in_graphs", kTwoTimesTwo, 1, SIGKILL, Calls::kReplays},
                      Fault{"killed_beside_a_graph", kTwoTimesTwo, 1, SIGKILL, Calls::kBoth},
                      Fault{"stopped", kTwoTimesTwo, 1, SIGSTOP, Calls::kEager},
                      Fault{"first_of_4_killed", kThreeAndOne, 0, SIGKILL, Calls::kEager},
                      Fault{"second_of_4_stopped", kThreeAndOne, 1, SIGSTOP, Calls::kEager},
                      Fault{"second_of_4_killed", kThreeAndOne, 1, SIGKILL, Calls::kBoth},
                      Fault{"last_of_4_killed", kThreeAndOne, 3, SIGKILL, Calls::kEager},
                      Fault{"last_of_4_stopped", kThreeAndOne, 3, SIGSTOP, Calls::kReplays}),
    [](const auto& each) { return each.param.name; });

// At some moment of it, or soon after. All delays at once, each with ranks of its own.
TEST_F(HostsLossTest, LossDuringSetUpIsAnError) {
  struct Trial {
    std::int64_t delay_ns;
    Shared<std::atomic<int>> num_begun{};
    Shared<std::atomic<int>> num_busy{};
    std::optional<RankProcesses> ranks{};
    std::int64_t begun_ns = 0;
    std::int64_t lost_ns = 0;
  };
  for (const int signal : {SIGKILL, SIGSTOP}) {
    std::list<Trial> trials;
    for (const std::int64_t delay_ms : {50, 200, 400, 800, 1600}) {
      Trial& trial = trials.emplace_back(delay_ms * 1'000'000);
      trial.ranks.emplace(
          2,
          [&](const Group& group) {
            set_host(kTwo[static_cast<std::size_t>(group.rank())]);
            const cuda::DeviceGuard guard(gpu_of(group.rank()).index);
            ++*trial.num_begun;
            CudaGraph graph;
            ExchangeRank rank(group, fault_config(), {.timeout_ms = kTimeoutMs});
            exchange_on(group, rank, graph, Calls::kEager, *trial.num_busy);
          },
          options_of(kTwo, 10'000));
    }
    const Deadline deadline = Deadline::after_ms(60'000);
    std::size_t num_lost = 0;
    while (num_lost < trials.size() && !deadline.expired()) {
      usleep(1000);
      for (Trial& trial : trials) {
        if (trial.lost_ns != 0 || *trial.num_begun < 2) continue;
        if (trial.begun_ns == 0) trial.begun_ns = now_ns();
        if (now_ns() - trial.begun_ns < trial.delay_ns) continue;
        trial.lost_ns = now_ns();
        trial.ranks->send_signal(1, signal);
        ++num_lost;
      }
    }
    for (Trial& trial : trials) {
      SCOPED_TRACE(fmt::format("signal {} after {} ns", signal, trial.delay_ns));
      ASSERT_NE(trial.lost_ns, 0) << "the ranks did not start";
      const RankOutcome outcome = trial.ranks->wait_for(0);
      ASSERT_TRUE(outcome.error) << "signal " << outcome.signal << ": " << outcome.output;
      EXPECT_THAT(outcome.error->what(), HasSubstr("rank 1"));
      EXPECT_LT(seconds_since(trial.lost_ns), kInTime);
    }
  }
}

TEST_F(HostsLossTest, CloseDoesNotWaitForGraphs) {
  run_on_hosts(kTwo, [](const Group& group) {
    CudaGraph graph;
    {
      ExchangeRank rank(group, fault_config());
      graph = CudaGraph(rank.stream().get(), [&] { rank.pair(); });
      group.barrier();
      graph.replay(rank.stream().get());
      rank.finish();
      const std::int64_t start = now_ns();
      rank.exchange().close();
      EXPECT_LT(seconds_since(start), kInTime);
    }
    ExchangeRank again(group, fault_config());
    again.pair();
    again.finish();
  });
}

TensorView first_rows(const TensorView& all, std::int64_t count) {
  return TensorView(all.data(), all.dtype(), {count, all.shape(1)}, all.device());
}

TEST_F(HostsLossTest, CallsThatDifferAreAnErrorInTime) {
  ExchangeConfig config = fault_config();
  const std::int64_t num_tokens = config.max_tokens_per_rank;
  config.max_tokens_per_rank *= 64;
  const auto differ = [&](const DispatchOptions& second, const auto& is_expected) {
    run_on_hosts(kTwo, [&](const Group& group) {
      ExchangeRank rank(group, config, {.timeout_ms = kTimeoutMs});
      const std::int64_t start = now_ns();
      const Error error = error_of([&] {
        rank.exchange().dispatch(first_rows(rank.tokens(), num_tokens),
                                 first_rows(rank.ids(), num_tokens), {}, rank.stream(),
                                 group.rank() == 0 ? DispatchOptions() : second);
        rank.finish();
      });
      is_expected(error);
      EXPECT_LT(seconds_since(start), kInTime);
    });
  };
  // Messages have other sizes then, and NCCL may say so or hang.
  const auto says = [](const char* what) {
    return [=](const Error& error) {
      EXPECT_THAT(error.code(), AnyOf(Errc::kInvalidArgument, Errc::kSystem, Errc::kTimeout));
      EXPECT_THAT(error.what(), HasSubstr(what));
    };
  };
  DispatchOptions routing_only;
  routing_only.routing_only = true;
  differ(routing_only, says("routing_only"));
  DispatchOptions few;
  few.max_tokens = num_tokens;
  differ(few, says("max_tokens"));
}

// The process of rank 1 does not end before rank 0 has the error.
TEST_F(HostsLossTest, RankThatCannotLaunchEndsTheGroupAtOnce) {
  constexpr std::int64_t kLongTimeoutMs = 60'000;
  struct Call {
    const char* name;
    std::function<void(ExchangeRank&, const Dispatched& earlier)> make;
  };
  const Call calls[] = {
      {"dispatch", [](ExchangeRank& rank, const Dispatched&) { rank.dispatch(); }},
      {"dispatch_again",
       [](ExchangeRank& rank, const Dispatched& earlier) {
         rank.exchange().dispatch_again(earlier.handle, rank.tokens(), {}, rank.stream());
       }},
      {"combine", [](ExchangeRank& rank, const Dispatched& earlier) { rank.combine(earlier); }},
  };
  for (const Call& call : calls) {
    SCOPED_TRACE(call.name);
    Shared<std::atomic<int>> num_found;
    run_on_hosts(kTwo, [&](const Group& group) {
      ExchangeConfig config = fault_config();
      config.max_in_flight = 2;
      ExchangeRank rank(group, config, {.timeout_ms = kLongTimeoutMs, .keeps_routing = true});
      const Dispatched earlier = rank.dispatch();
      rank.finish();
      group.barrier();
      const bool is_lost = group.rank() == 1;
      if (is_lost) {  // reads address 0, after which its GPU fails in every call
        launch_late_copy({nullptr, nullptr, 4}, {}, 0, false, rank.stream().get());
        EXPECT_NE(cudaStreamSynchronize(rank.stream().get()), cudaSuccess);
      }
      const std::int64_t start = now_ns();
      const Error error = error_of([&] {
        call.make(rank, earlier);
        rank.finish();
      });
      EXPECT_EQ(error.code(), Errc::kSystem) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("CUDA says"));
      EXPECT_LT(seconds_since(start), kInTime);
      if (!is_lost) {
        ++*num_found;
        return;
      }
      wait_until(*num_found, 1);
      std::fflush(nullptr);
      std::_Exit(HasFailure() ? 1 : 0);  // there is no GPU to give memory back to
    });
  }
}

// Kernels that wait for ranks of this host, before rows are passed back, leave room for those of
// another stream, which the ranks of this host wait for.
TEST_F(HostsLossTest, StreamsMayRunInAnyOrder) {
  if (num_gpus_in_child() < 4) GTEST_SKIP() << "ranks that share a GPU get shares in any event";
  constexpr std::int64_t kLateUs = 200'000;
  run_on_hosts(kTwoTimesTwo, [](const Group& group) {
    ExchangeConfig config = fault_config();
    config.hidden = 7168;
    config.max_tokens_per_rank = 512;
    config.max_in_flight = 2;
    Exchange exchange(group, config, {.device = gpu_of(group.rank()), .timeout_ms = 5'000});
    BatchOfOnes a(config, exchange.device());
    BatchOfOnes b(config, exchange.device());
    cuda::DeviceBuffer words(2 * sizeof(std::uint32_t));
    const bool is_first = group.control().host_rank() == 0;
    for (int round = 0; round < 3; ++round) {  // memory for b is taken in the first
      group.barrier();
      a.dispatch(exchange, a.stream());
      b.dispatch(exchange, b.stream());
      launch_late_copy({words.data(), words.data() + 4, 4}, {}, kLateUs, false,
                       (is_first ? b : a).stream().get());
      a.combine(exchange, a.stream());
      b.combine(exchange, b.stream());
      a.finish(exchange);
      b.finish(exchange);
    }
  });
}

TEST_F(HostsLossTest, StreamsMayBeAsManyAsHandles) {
  if (num_gpus_in_child() < 2) GTEST_SKIP() << "ranks that share a GPU get shares in any event";
  run_on_hosts(kTwo, [](const Group& group) {
    ExchangeConfig config = fault_config();
    config.max_in_flight = 64;
    Exchange exchange(group, config, {.device = gpu_of(group.rank()), .timeout_ms = 20'000});
    run_in_streams_of_their_own(exchange, group);
  });
}

}  // namespace
}  // namespace switchyard
