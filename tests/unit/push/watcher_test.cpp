// SPDX-License-Identifier: Apache-2.0
//
// The host's side of kernel waits: records and abort words in ordinary memory, so no GPU is needed.

#include "exchange/push/watcher.h"

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <signal.h>

#include "core/clock.h"
#include "core/fail.h"
#include "support/errors.h"
#include "support/processes.h"
#include "support/ranks.h"
#include "support/shared.h"

namespace switchyard {
namespace {

using test::error_of;
using test::run_ranks;
using ::testing::HasSubstr;

constexpr std::int64_t kNumExperts = 8;
constexpr WaitSite kSite{Phase::kDispatchSend, 41, -1};

cuda::WaitRecord record_of(cuda::WaitPlace place, std::int32_t peer, std::int32_t token) {
  cuda::WaitRecord record{};
  record.place = static_cast<std::uint32_t>(place);
  record.peer = peer;
  record.token = token;
  record.call = 7;
  record.waited_ns = 1'500'000'000;
  return record;
}

// Writes the failure last, as a kernel does.
void leave(WatchWords& words, cuda::WaitFailure failure, const cuda::WaitRecord& record) {
  constexpr std::size_t kRest = offsetof(cuda::WaitRecord, place);
  std::memcpy(&words.record.place, &record.place, sizeof(cuda::WaitRecord) - kRest);
  std::atomic_ref(words.record.failure)
      .store(static_cast<std::uint32_t>(failure), std::memory_order_release);
}

// Milliseconds until kernels are asked to end; at most 10 s.
std::int64_t wait_for_word(WatchWords& words) {
  const std::int64_t start = now_ns();
  while (std::atomic_ref(words.abort_word).load() == 0 && now_ns() - start < 10'000'000'000) {
    usleep(500);
  }
  return (now_ns() - start) / 1'000'000;
}

TEST(WatcherTest, NothingHappensWhileAllIsWell) {
  run_ranks(2, [](const Group& group) {
    WatchWords words{};
    Watcher watcher(group.control(), words, kNumExperts);
    usleep(100'000);
    EXPECT_NO_THROW(watcher.check(kSite));
    EXPECT_FALSE(watcher.look());
    EXPECT_EQ(words.abort_word, 0u);
    group.barrier();
  });
}

TEST(WatcherTest, TimeoutOfOneRankEndsTheKernelsOfAll) {
  run_ranks(3, [](const Group& group) {
    WatchWords words{};
    Watcher watcher(group.control(), words, kNumExperts);
    group.barrier();
    if (group.rank() == 0) {
      leave(words, cuda::WaitFailure::kTimeout, record_of(cuda::WaitPlace::kRow, 2, 3));
    }
    EXPECT_LT(wait_for_word(words), 1000);
    const Error error = error_of([&] { watcher.check(kSite); });
    EXPECT_EQ(error.code(), Errc::kTimeout);
    const std::string cause = "rank 0 had no row 3 from rank 2 within 1.5 s in dispatch receive";
    EXPECT_EQ(
        error.what(),
        "dispatch: " + cause +
            (group.rank() == 0
                 ? " (rank 0 of 3, call 7)"
                 : fmt::format(" (rank {} of 3 stopped in dispatch send, call 41)", group.rank())));
    // A later record changes nothing.
    if (group.rank() == 1) {
      leave(words, cuda::WaitFailure::kAborted, record_of(cuda::WaitPlace::kReturnedRow, 2, 5));
    }
    EXPECT_STREQ(error_of([&] { watcher.check(kSite); }).what(), error.what());
  });
}

// Of another host, whose tokens rank 1 passes on.
TEST(WatcherTest, WhoPassesOnIsToBlame) {
  class Links final : public LinkWatch {
   public:
    void look(Control& /*control*/) noexcept override {}
    void abort() noexcept override {}
    int passed_on_by(int source) const noexcept override { return source == 2 ? 1 : -1; }
  };
  run_ranks(3, [](const Group& group) {
    WatchWords words{};
    Links links;
    Watcher watcher(group.control(), words, kNumExperts, &links);
    group.barrier();
    if (group.rank() == 0) {
      leave(words, cuda::WaitFailure::kTimeout, record_of(cuda::WaitPlace::kAnnouncement, 2, -1));
    }
    wait_for_word(words);
    const std::string what = error_of([&] { watcher.check(kSite); }).what();
    EXPECT_THAT(what, HasSubstr("rank 0 had no announcement from rank 2, which rank 1 passes on, "
                                "within 1.5 s in dispatch receive"));
  });
}

TEST(WatcherTest, RankThatUnwindsAnExceptionIsNamed) {
  std::atomic<bool> is_over = false;
  run_ranks(2, [&](const Group& group) {
    if (group.rank() == 1) {
      while (!is_over) usleep(1000);
      return;
    }
    WatchWords words{};
    Watcher watcher(group.control(), words, kNumExperts, nullptr, [] { return 1; });
    EXPECT_LT(wait_for_word(words), 1000);
    EXPECT_NO_THROW(watcher.check(kSite)) << "no kernel waited";
    leave(words, cuda::WaitFailure::kAborted, record_of(cuda::WaitPlace::kRow, 1, 5));
    test::expect_error(Errc::kAborted,
                       "aborted by rank 1: it ended its exchange because of an exception",
                       [&] { watcher.check(kSite); });
    is_over = true;
  });
}

TEST(WatcherTest, KernelThatStoppedSaysWhere) {
  run_ranks(2, [](const Group& group) {
    WatchWords words{};
    Watcher watcher(group.control(), words, kNumExperts);
    group.barrier();
    if (group.rank() == 1) group.abort("enough");
    EXPECT_LT(wait_for_word(words), 1000);
    leave(words, cuda::WaitFailure::kAborted, record_of(cuda::WaitPlace::kReturnedRow, 1, 5));
    const Error error = error_of([&] { watcher.check(kSite); });
    EXPECT_EQ(error.code(), Errc::kAborted);
    EXPECT_EQ(std::string(error.what()),
              fmt::format("combine: the group was aborted by rank 1: enough (rank {} of 2 stopped "
                          "in combine receive, call 7)",
                          group.rank()));
  });
}

TEST(WatcherTest, BadIdIsThisRanksErrorAndAbortsTheOthers) {
  run_ranks(2, [](const Group& group) {
    WatchWords words{};
    Watcher watcher(group.control(), words, kNumExperts);
    group.barrier();
    if (group.rank() == 1) {
      cuda::WaitRecord record = record_of(cuda::WaitPlace::kInput, 1, 5);
      record.expected = 3;
      record.seen = 99;
      leave(words, cuda::WaitFailure::kInvalidId, record);
    }
    wait_for_word(words);
    const bool is_own = group.rank() == 1;
    test::expect_error(is_own ? Errc::kInvalidArgument : Errc::kAborted,
                       "topk_ids[5, 3] is 99, must be -1 or an expert from 0 to 7",
                       [&] { watcher.check(kSite); });
  });
}

TEST(WatcherTest, ExceededCapacityIsEveryRanksError) {
  run_ranks(2, [](const Group& group) {
    WatchWords words{};
    Watcher watcher(group.control(), words, kNumExperts);
    group.barrier();
    if (group.rank() == 1) {
      cuda::WaitRecord record = record_of(cuda::WaitPlace::kAnnouncement, 1, 2);
      record.expected = 4;
      record.seen = 9;
      leave(words, cuda::WaitFailure::kCapacityExceeded, record);
    }
    wait_for_word(words);
    test::expect_error(Errc::kCapacityExceeded,
                       "local expert 2 of rank 1 was sent 9 rows, its capacity is 4",
                       [&] { watcher.check(kSite); });
  });
}

TEST(WatcherTest, PeerWithoutWeightsIsThisRanksErrorAndAbortsTheOthers) {
  run_ranks(3, [](const Group& group) {
    WatchWords words{};
    Watcher watcher(group.control(), words, kNumExperts);
    group.barrier();
    const bool is_own = group.rank() == 1;
    if (is_own)
      leave(words, cuda::WaitFailure::kNoWeights, record_of(cuda::WaitPlace::kReturnedRow, 2, 5));
    wait_for_word(words);
    test::expect_error(is_own ? Errc::kInvalidArgument : Errc::kAborted,
                       "returned_weights is requested, but rank 2 passed no row_weights", [&] {
                         watcher.check({Phase::kCombineReceive, 41, -1});
                       });
  });
}

TEST(WatcherTest, PeerThatLeftIsLost) {
  EXPECT_NO_THROW(run_ranks(2, [](const Group& group) {
    if (group.rank() == 1) return;
    WatchWords words{};
    Watcher watcher(group.control(), words, kNumExperts);
    EXPECT_LT(wait_for_word(words), 1000);
    test::expect_error(Errc::kPeerLost, "rank 1 was lost (it left the group)",
                       [&] { watcher.check(kSite); });
  }));
}

TEST(WatcherTest, KilledPeerIsNamedByAll) {
  test::Shared<std::atomic<int>> num_ready;
  test::RankProcesses ranks(3, [&](const Group& group) {
    WatchWords words{};
    Watcher watcher(group.control(), words, kNumExperts);
    ++*num_ready;
    EXPECT_LT(wait_for_word(words), 10'000);
    // What the kernel reported is not the cause.
    leave(words, cuda::WaitFailure::kTimeout, record_of(cuda::WaitPlace::kReturnedRow, 1, 5));
    watcher.check(kSite);
  });
  const Deadline deadline = Deadline::after_ms(20'000);
  while (*num_ready < 3 && !deadline.expired()) usleep(1000);
  ranks.send_signal(1, SIGKILL);
  const auto outcomes = ranks.wait();
  for (const std::size_t rank : {0u, 2u}) {
    ASSERT_TRUE(outcomes[rank].error) << outcomes[rank].output;
    EXPECT_EQ(outcomes[rank].error->code(), Errc::kPeerLost);
    EXPECT_THAT(
        outcomes[rank].error->what(),
        HasSubstr(fmt::format("combine: rank 1 was lost (its process is gone) while rank {} "
                              "waited in combine receive, call 7",
                              rank)));
  }
}

TEST(WaitFailureTest, IdsInWords) {
  cuda::WaitRecord record = record_of(cuda::WaitPlace::kInput, 0, 5);
  record.failure = static_cast<std::uint32_t>(cuda::WaitFailure::kInvalidId);
  record.expected = 1;
  const auto what = [&](std::int32_t id) {
    record.seen = id;
    return describe(record, 0, kNumExperts).what;
  };
  EXPECT_THAT(what(-2), HasSubstr("topk_ids[5, 1] is -2, must be -1 or an expert from 0 to 7"));
  EXPECT_THAT(what(8), HasSubstr("is 8, must be"));
  EXPECT_THAT(what(0x7FFFFFFF), HasSubstr("is out of range, must be"));
  EXPECT_THAT(what(7), HasSubstr("is 7, which is twice in its token"));
}

TEST(WaitFailureTest, SharedGpusGetMoreTimeUnlessAsked) {
  EXPECT_EQ(kernel_timeout_ms(0, 300, false), 300);
  EXPECT_EQ(kernel_timeout_ms(0, 300, true), 300 * kSharedGpuPatience);
  EXPECT_EQ(kernel_timeout_ms(50, 300, true), 50);
}

}  // namespace
}  // namespace switchyard
