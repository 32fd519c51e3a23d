// SPDX-License-Identifier: Apache-2.0
//
// Ranks that exchange messages: what is missing, late or out of order must be an error or must not
// matter; nobody waits for ever, also not for what it has sent itself.

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "unit/exchange/small_exchange.h"

namespace switchyard {
namespace {

using namespace test;

// Every rank for itself, or rank 0 on one host and the others, by two, on more.
class MessagesFaultTest : public ::testing::TestWithParam<const char*> {
 protected:
  static void run_message_ranks(int num_ranks, const std::function<void(const Group&)>& body,
                                std::int64_t timeout_ms = kRanksTimeoutMs) {
    if (GetParam() == std::string("messages")) {
      run_local_ranks(num_ranks, body, {.engine = "local-messages", .timeout_ms = timeout_ms});
      return;
    }
    std::vector<int> hosts;
    for (int rank = 0; rank < num_ranks; ++rank) hosts.push_back((rank + 1) / 2);
    run_ranks_on_hosts(hosts, body, timeout_ms);
  }
};
INSTANTIATE_TEST_SUITE_P(Cpu, MessagesFaultTest, ::testing::Values("messages", "hosts"),
                         [](const auto& param) { return std::string(param.param); });

// Everybody stays until all have seen their error: a rank that leaves is another error.
class Everybody {
 public:
  explicit Everybody(int num_ranks) : num_ranks_(num_ranks) {}
  void wait() {
    ++num_here_;
    while (num_here_ < num_ranks_) std::this_thread::yield();
  }

 private:
  int num_ranks_;
  std::atomic<int> num_here_ = 0;
};

TEST_P(MessagesFaultTest, RankThatDoesNotSendIsATimeoutThatNamesIt) {
  Everybody everybody(3);
  run_message_ranks(
      3,
      [&](const Group& group) {
        Exchange exchange(group, small_config());
        Inputs in;
        if (group.rank() == 1) return everybody.wait();
        const Error error = error_of([&] { dispatch_inputs(exchange, in); });
        EXPECT_EQ(error.code(), Errc::kTimeout);
        EXPECT_THAT(error.what(), ::testing::HasSubstr("dispatch: "));
        EXPECT_THAT(error.what(), ::testing::HasSubstr("rank 1"));
        everybody.wait();
      },
      300);
}

TEST_P(MessagesFaultTest, RankThatDoesNotReturnRowsIsATimeoutThatNamesIt) {
  Everybody everybody(2);
  run_message_ranks(
      2,
      [&](const Group& group) {
        Exchange exchange(group, small_config());
        Inputs in;
        const Dispatched got = dispatch_inputs(exchange, in);
        if (group.rank() == 1) return everybody.wait();
        const Tensor rows = zeros_like(got.experts.rows);
        const Tensor output(DType::kBF16, {2, kHidden});
        expect_error(Errc::kTimeout, "combine: no answer from rank 1",
                     [&] { exchange.combine(got.handle, rows, output); });
        everybody.wait();
      },
      300);
}

TEST_P(MessagesFaultTest, RankThatFailedIsNamedAndNobodyWaitsForItsMessages) {
  const auto start = std::chrono::steady_clock::now();
  std::atomic<int> num_told = 0;
  const auto work = [&](const Group& group) {
    Exchange exchange(group, small_config());
    Inputs in;
    const DispatchHandle sent = exchange.dispatch_send(in.tokens(), in.ids());
    if (group.rank() == 2) throw std::runtime_error("no disk");
    exchange.release(exchange.dispatch_receive(sent).handle);
    expect_works(exchange);
  };
  const auto told = [&](const Group& group) {
    if (group.rank() == 2) return work(group);
    const Error error = error_of([&] { work(group); });
    EXPECT_EQ(error.code(), Errc::kAborted);
    EXPECT_THAT(error.what(), ::testing::HasSubstr("no disk"));
    ++num_told;
  };
  EXPECT_THROW(run_message_ranks(3, told), std::runtime_error);
  EXPECT_EQ(num_told, 2);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

TEST_P(MessagesFaultTest, RankThatLeftIsLost) {
  Everybody everybody(2);
  run_message_ranks(3, [&](const Group& group) {
    Exchange exchange(group, small_config());
    expect_works(exchange);
    if (group.rank() == 1) return;
    Inputs in;
    expect_error(Errc::kPeerLost, "rank 1 was lost (it left the group)",
                 [&] { dispatch_inputs(exchange, in); });
    everybody.wait();
  });
}

// A send is done only when its peer receives: any wait for a send in the wrong place would hang.
TEST_P(MessagesFaultTest, PhasesOfManyHandlesInAnyOrderDoNotDeadlock) {
  run_message_ranks(3, [](const Group& group) {
    ExchangeConfig config = small_config();
    config.max_in_flight = 4;
    Exchange exchange(group, config);
    Inputs in;
    in.token_values.fill(0x3F80);
    for (int round = 0; round < 20; ++round) {
      std::vector<DispatchHandle> sent;
      for (int i = 0; i < 4; ++i) sent.push_back(exchange.dispatch_send(in.tokens(), in.ids()));
      std::vector<Tensor> rows;
      for (int i = 3; i >= 0; --i) {
        const Dispatched got = exchange.dispatch_receive(sent[static_cast<std::size_t>(i)]);
        rows.push_back(zeros_like(got.experts.rows));
        std::fill_n(rows.back().as<std::uint16_t>(), rows.back().view().num_elements(), 0x3F80);
      }
      for (const std::size_t i : {1u, 3u, 0u, 2u}) exchange.combine_send(sent[i], rows[3 - i]);
      for (const std::size_t i : {2u, 1u, 3u, 0u}) {
        const Tensor output(DType::kBF16, {2, kHidden});
        exchange.combine_receive(sent[i], output);
        ASSERT_EQ(output.as<std::uint16_t>()[kHidden + 3], 0x4000);
      }
    }
  });
}

TEST_P(MessagesFaultTest, LiveHandlesDoNotKeepAnExchangeFromClosing) {
  const auto start = std::chrono::steady_clock::now();
  run_message_ranks(3, [](const Group& group) {
    Inputs in;
    {
      Exchange exchange(group, small_config());
      (void)exchange.dispatch_send(in.tokens(), in.ids());
    }
    Exchange exchange(group, small_config());
    const Dispatched got = dispatch_inputs(exchange, in);
    const Tensor rows = zeros_like(got.experts.rows);
    exchange.combine_send(got.handle, rows);
    exchange.close();
    group.barrier();
  });
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(10));
}

// What a rank sent in its last call arrives although it has closed and may have left.
TEST_P(MessagesFaultTest, LastRowsArriveAfterTheirSenderHasClosed) {
  for (int round = 0; round < 20; ++round) {
    run_message_ranks(3, [&](const Group& group) {
      Exchange exchange(group, small_config());
      if (group.rank() == round % 3) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      expect_works(exchange);
    });
  }
}

// Rank 1 passes on what rank 0 of the other host sends to rank 2, and needs none of it itself: its
// part must be done before it goes on, because it waits for rank 2 in a barrier next.
TEST_P(MessagesFaultTest, BarriersBetweenPhasesDoNotDeadlock) {
  run_message_ranks(3, [](const Group& group) {
    ExchangeConfig config = small_config();
    config.num_experts = 3;
    config.num_topk = 1;
    Exchange exchange(group, config);
    Inputs in;
    in.id_values = {2, 2};
    const TensorView ids = TensorView::of(in.id_values.data(), {2, 1});
    for (int round = 0; round < 20; ++round) {
      const DispatchHandle sent = exchange.dispatch_send(in.tokens(), ids);
      if (group.rank() != 2) {
        (void)exchange.dispatch_receive(sent);
        group.barrier();
      } else {
        const Dispatched got = exchange.dispatch_receive(sent);
        group.barrier();
        EXPECT_EQ(got.host->num_rows, 6);
      }
      const Tensor rows(DType::kBF16, {group.rank() == 2 ? 6 : 0, kHidden});
      const Tensor output(DType::kBF16, {2, kHidden});
      exchange.combine(sent, rows, output);
      group.barrier();
    }
  });
}

TEST(MessagesMemoryTest, IsPrivate) {
  const auto work = [](const Group& group) {
    const Exchange exchange(group, small_config());
    const ExchangeMemory over_windows = exchange_memory(small_config(), 2, group.rank());
    EXPECT_EQ(exchange.memory().window_bytes, 0u);
    EXPECT_GT(exchange.memory().receive_bytes, over_windows.receive_bytes);
  };
  run_local_ranks(2, work, {.engine = "local-messages", .timeout_ms = kRanksTimeoutMs});
}

}  // namespace
}  // namespace switchyard
