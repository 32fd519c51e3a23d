// SPDX-License-Identifier: Apache-2.0
//
// Nothing of a group but its windows needs shared memory.

#include "support/store_engine.h"

#include <atomic>
#include <thread>

#include <gmock/gmock.h>

#include "switchyard/exchange.h"
#include "switchyard/group.h"

#include "support/engine_suite.h"
#include "support/observe.h"
#include "transport/hash_store.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::HasSubstr;

constexpr std::int64_t kStoreTimeoutMs = 20'000;

// `body` on each rank, a thread each, which must not throw.
void run_store_ranks(int num_ranks, const std::function<void(const Group&)>& body,
                     std::int64_t timeout_ms = kStoreTimeoutMs, const std::vector<int>& hosts = {},
                     const std::shared_ptr<Store>& store = std::make_shared<HashStore>()) {
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([=, &body] {
      const GroupSpec spec{rank, num_ranks, timeout_ms, store, hosts};
      try {
        body(Group(std::make_shared<test::StoreEngine>(spec)));
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
}

struct StoreRanks {
  static constexpr const char* kName = "store";
  static constexpr std::int64_t kTimeoutMs = kStoreTimeoutMs;
  static constexpr int kRounds = 20;
  static void run(int num_ranks, const std::function<void(const Group&)>& body) {
    run_store_ranks(num_ranks, body);
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Store, ControlSuite, StoreRanks);

TEST(StoreEngineTest, ExchangeIsNotSupported) {
  run_store_ranks(2, [](const Group& group) {
    EXPECT_FALSE(group.engine().has_windows());
    ExchangeConfig config;
    config.num_experts = 2;
    config.num_topk = 1;
    config.hidden = 8;
    config.max_tokens_per_rank = 1;
    const Error error = error_of([&] { Exchange(group, config); });
    EXPECT_EQ(error.code(), Errc::kNotSupported);
    EXPECT_STREQ(error.what(),
                 "exchange: ranks of engine \"store\" do not address each other's memory, must be "
                 "of an engine with windows; use local or shm");
    group.barrier();  // the group is unharmed
  });
}

TEST(StoreEngineTest, AbortReachesAllRanks) {
  std::atomic<int> num_ready = 0;
  std::atomic<int> num_told = 0;
  run_store_ranks(3, [&](const Group& group) {
    EXPECT_EQ(group.error(), std::nullopt);
    ++num_ready;
    while (num_ready < 3) std::this_thread::yield();
    if (group.rank() == 1) group.abort("user said stop");
    const Error error = error_of([&] { group.control().wait({}, [] { return false; }); });
    EXPECT_EQ(error.code(), Errc::kAborted);
    EXPECT_THAT(error.what(), HasSubstr("aborted by rank 1: user said stop"));
    EXPECT_EQ(group.error()->code(), Errc::kAborted);
    ++num_told;
    while (num_told < 3) std::this_thread::yield();
  });
}

// Gathers of the thread that is interrupted end as a wait for a socket does.
class InterruptedStore final : public Store {
 public:
  static inline thread_local bool is_wanted = false;

  void set(const std::string& key, const std::string& value) override { store_.set(key, value); }
  std::optional<std::string> get(const std::string& key, const Deadline& deadline) override {
    if (is_wanted && key.find("gather/") != key.npos) {
      throw Error(Errc::kAborted, "socket: interrupted while it waited");
    }
    return store_.get(key, deadline);
  }

 private:
  HashStore store_;
};

TEST(StoreEngineTest, InterruptWhileASocketWaitsEndsTheGroup) {
  std::atomic<int> num_told = 0;
  run_store_ranks(
      3,
      [&](const Group& group) {
        InterruptedStore::is_wanted = group.rank() == 1;
        const std::int64_t start = now_ns();
        const Error error = error_of([&] {
          (void)group.control().all_gather_text({Phase::kSetup, "test"}, "text");
        });
        EXPECT_EQ(error.code(), Errc::kAborted);
        EXPECT_THAT(error.what(), HasSubstr("aborted by rank 1: it was interrupted"));
        EXPECT_LT(seconds_since(start), 5.0);
        ++num_told;
        while (num_told < 3) std::this_thread::yield();
      },
      kStoreTimeoutMs, {}, std::make_shared<InterruptedStore>());
}

TEST(StoreEngineTest, DeadlineNamesThePeer) {
  std::atomic<int> num_done = 0;
  run_store_ranks(
      3,
      [&](const Group& group) {
        if (group.rank() == 2) {
          while (num_done < 2) std::this_thread::yield();
          return;
        }
        const Error error = error_of([&] { group.barrier(); });
        EXPECT_EQ(error.code(), Errc::kTimeout);
        EXPECT_THAT(error.what(), HasSubstr("no answer from rank 2 within 0.3 s"));
        EXPECT_THAT(error.what(), HasSubstr("has not said where it is"));
        ++num_done;
      },
      300);
}

TEST(StoreEngineTest, PeerThatLeftIsLost) {
  run_store_ranks(2, [](const Group& group) {
    if (group.rank() == 1) return;
    expect_error(Errc::kPeerLost, "rank 1 was lost (it left the group)", [&] { group.barrier(); });
  });
}

TEST(StoreEngineTest, SubgroupsWork) {
  for (const int size : kRankCounts) {
    run_store_ranks(size, [&](const Group& group) {
      const Group part = group.split(group.rank() % 2, -group.rank());
      EXPECT_EQ(part.size(), (size + 1 - group.rank() % 2) / 2);
      part.barrier();
      const auto texts =
          part.control().all_gather_text({Phase::kSetup, "test"}, std::to_string(group.rank()));
      EXPECT_EQ(texts[static_cast<std::size_t>(part.rank())], std::to_string(group.rank()));
    });
  }
}

// Ranks of two hosts, dealt out in turn: 0 2 4 on the first, 1 3 5 6 on the second.
TEST(StoreEngineTest, HostsAreKnownAndKeptInSubgroups) {
  const std::vector<int> hosts{0, 1, 0, 1, 0, 1, 1};
  const std::vector<int> host_ranks{0, 0, 1, 1, 2, 2, 3};
  run_store_ranks(
      7,
      [&](const Group& group) {
        const auto rank = static_cast<std::size_t>(group.rank());
        EXPECT_EQ(group.host_rank(), host_ranks[rank]);
        EXPECT_EQ(group.host_size(), hosts[rank] == 0 ? 3 : 4);
        const Group rail = group.split(group.host_rank());
        EXPECT_EQ(rail.host_rank(), 0);
        EXPECT_EQ(rail.host_size(), 1);
        const Group host = group.split(group.control().host_of(group.rank()));
        EXPECT_EQ(host.rank(), group.host_rank());
        EXPECT_EQ(host.host_size(), host.size());
      },
      kStoreTimeoutMs, hosts);
}

}  // namespace
}  // namespace switchyard
