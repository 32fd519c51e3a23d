// SPDX-License-Identifier: Apache-2.0
//
// Micro-batches over engine "shm": the same bits, and the errors when a rank dies or stops while
// its micro-batches are in flight.

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <vector>

#include <gmock/gmock.h>

#include "switchyard/micro_batches.h"

#include "core/clock.h"
#include "support/overlapped_layer.h"
#include "support/processes.h"
#include "support/shared.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::HasSubstr;

TEST(OverlapTest, ProcessesGetTheBitsOfAPlainCall) {
  for (const PrepareKind kind : {PrepareKind::kLowLatency, PrepareKind::kElasticPrefill,
                                 PrepareKind::kAllToAll, PrepareKind::kAllGather}) {
    test::run_processes(3, [&](const Group& group) {
      OverlappedLayer layer(group, {kind, schemes::kFp8Block, Reduce::kPerRank, 3});
      const std::vector<std::uint16_t> whole = layer.run(0);
      for (const int count : {3, 2, 3}) EXPECT_EQ(layer.run(count), whole) << name_of(kind);
    });
  }
}

// Rank 2 dies or stops while the experts of its first micro-batch run; the rows of its second one
// are already sent.
std::vector<RankOutcome> run_until(int signal, std::int64_t timeout_ms, std::int64_t& end_ns) {
  test::Shared<std::atomic<std::int64_t>> sent;
  RankProcesses ranks(3,
                      [&](const Group& group) {
                        OverlapCase test;
                        test.has_even_tokens = true;  // every rank waits for results of rank 2
                        OverlappedLayer layer(group, test);
                        layer.run(2);
                        layer.kernel().set_inspector([&](const Prepared&, const TensorView&) {
                          if (group.rank() != 2) return;
                          *sent = now_ns();
                          std::raise(signal);
                        });
                        layer.run(2);
                      },
                      {.timeout_ms = timeout_ms, .deadline_ms = 40'000});
  std::vector<RankOutcome> outcomes(3);
  for (const int rank : {0, 1}) outcomes[static_cast<std::size_t>(rank)] = ranks.wait_for(rank);
  end_ns = now_ns() - *sent;
  if (signal == SIGSTOP) ranks.send_signal(2, SIGCONT);
  outcomes[2] = ranks.wait_for(2);
  return outcomes;
}

TEST(OverlapTest, ARankThatDiesIsNamedOnTheOthers) {
  std::int64_t end_ns = 0;
  const std::vector<RankOutcome> outcomes = run_until(SIGKILL, 20'000, end_ns);
  EXPECT_LT(end_ns, 2'000'000'000);
  EXPECT_EQ(outcomes[2].signal, SIGKILL);
  for (const std::size_t rank : {0u, 1u}) {
    ASSERT_TRUE(outcomes[rank].error.has_value()) << outcomes[rank].output;
    EXPECT_EQ(outcomes[rank].error->code(), Errc::kPeerLost);
    EXPECT_THAT(outcomes[rank].error->what(), HasSubstr("rank 2 was lost"));
  }
}

// The wait for the peer ends before the other micro-batch's wait for its turn.
TEST(OverlapTest, ARankThatStopsIsATimeoutThatNamesIt) {
  std::int64_t end_ns = 0;
  const std::vector<RankOutcome> outcomes = run_until(SIGSTOP, 500, end_ns);
  EXPECT_GE(end_ns, 500'000'000);
  for (const std::size_t rank : {0u, 1u}) {
    ASSERT_TRUE(outcomes[rank].error.has_value()) << outcomes[rank].output;
    EXPECT_EQ(outcomes[rank].error->code(), Errc::kTimeout);
    EXPECT_THAT(outcomes[rank].error->what(), HasSubstr("no answer from rank 2 within 0.5 s"));
  }
  EXPECT_TRUE(outcomes[2].error.has_value());  // the stopped rank learns of it, too
}

// Ctrl-Z and fg: the time away, longer than a turn may last, does not count.
TEST(OverlapTest, AStopOfTheWholeJobDoesNotEndATurn) {
  constexpr int kTimeoutMs = 1000;
  test::Shared<std::atomic<bool>> has_begun;
  RankProcesses ranks(1,
                      [&](const Group& group) {
                        run_micro_batches(group, 2, [&](int m) {
                          *has_begun = true;
                          for (int i = 0; m == 0 && i < 80; ++i) usleep(10'000);
                        });
                      },
                      {.timeout_ms = kTimeoutMs});
  while (!*has_begun) usleep(10'000);
  usleep(100'000);
  ranks.send_signal(0, SIGSTOP);
  usleep(2 * kTimeoutMs * 1000 + 500'000);
  ranks.send_signal(0, SIGCONT);
  const RankOutcome end = ranks.wait_for(0);
  EXPECT_EQ(end.exit_code, 0) << end.output;
}

}  // namespace
}  // namespace switchyard
