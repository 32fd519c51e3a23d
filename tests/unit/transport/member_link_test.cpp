// SPDX-License-Identifier: Apache-2.0
//
// Ranks and the server of their group, as threads of one process.

#include "transport/member_link.h"

#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "core/clock.h"
#include "support/errors.h"
#include "transport/control_block.h"
#include "transport/store_server.h"

namespace switchyard {
namespace {

using namespace member_protocol;

class MemberLinkTest : public ::testing::Test {
 protected:
  std::unique_ptr<MemberLink> join(int rank, int size) {
    return std::make_unique<MemberLink>(StoreConnection(server_->address(), "", 10'000), rank, size,
                                        10'000);
  }
  template <typename Condition>
  static bool comes(Condition&& condition) {
    const Deadline deadline = Deadline::after_ms(5000);
    while (!condition() && !deadline.expired()) usleep(1000);
    return condition();
  }

  std::unique_ptr<StoreServer> server_ = StoreServer::start(
      Address::parse("unix:@switchyard-member-test-" + std::to_string(getpid())), "");
};

TEST_F(MemberLinkTest, SecondProcessOfANumberIsRefused) {
  const auto first = join(1, 2);
  test::expect_error(Errc::kInvalidArgument, "refuses rank 1 of 2", [&] { join(1, 2); });
}

TEST_F(MemberLinkTest, WhoComesLateHearsWhatWas) {
  join(0, 2)->leave();
  const auto late = join(1, 2);
  EXPECT_TRUE(comes([&] { return late->left_ns(0) != 0; }));
}

TEST_F(MemberLinkTest, ThreadsThatAskAtOnceAreAllAnswered) {
  constexpr int kQuestions = 200;
  const auto link = join(0, 2);
  std::vector<std::thread> threads;
  std::atomic<int> num_answers = 0;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < kQuestions; ++i) {
        const auto answer = link->ask(Question::kWhoIsMissing, 1);
        if (answer && get_u64(*answer, 0) == 0) ++num_answers;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_answers, 4 * kQuestions);
}

TEST_F(MemberLinkTest, EndIsHeardOnceByWhoeverWantsToKnow) {
  const auto first = join(0, 2);
  const auto second = join(1, 2);
  std::atomic<int> num_calls = 0;
  second->when_ended([&] { ++num_calls; });
  EXPECT_TRUE(first->end(abort_code(Errc::kAborted), 0, "stop"));
  EXPECT_TRUE(comes([&] { return second->has_ended(); }));
  EXPECT_TRUE(comes([&] { return num_calls == 1; }));
  first->when_ended([&] { ++num_calls; });  // late
  EXPECT_EQ(num_calls, 2);
}

TEST_F(MemberLinkTest, ServerStaysUntilAllAreDone) {
  const auto first = join(0, 2);
  auto second = join(1, 2);
  std::atomic<int> num_calls = 0;
  for (const auto& link : {first.get(), second.get()}) {
    link->when_ended([&] { ++num_calls; });
    link->leave_but_listen();
  }
  server_->end_when_over();
  EXPECT_TRUE(comes([&] { return server_->only_awaits_ends(); }));
  second->be_done();
  second.reset();
  usleep(100'000);
  EXPECT_FALSE(server_->has_ended());
  first->leave();
  EXPECT_TRUE(comes([&] { return server_->has_ended(); }));
  EXPECT_EQ(num_calls, 0);
}

TEST_F(MemberLinkTest, ServerThatGoesBeforeARankIsDoneIsALossToIt) {
  const auto first = join(0, 2);
  const auto second = join(1, 2);
  std::atomic<int> num_calls = 0;
  second->when_ended([&] { ++num_calls; });
  first->leave_but_listen();
  second->leave_but_listen();
  server_.reset();
  EXPECT_TRUE(comes([&] { return num_calls == 1; }));
  EXPECT_FALSE(second->has_ended());  // the group was well
}

TEST_F(MemberLinkTest, ServerStaysUntilAllHaveLeft) {
  auto first = join(0, 3);
  auto second = join(1, 3);
  auto third = join(2, 3);
  first.reset();
  server_->end_when_over();
  EXPECT_TRUE(comes([&] { return second->left_ns(0) != 0; }));
  third->leave();
  EXPECT_TRUE(comes([&] { return second->left_ns(2) != 0; }));
  EXPECT_TRUE(second->ask(Question::kPlaceOf, 1).has_value());
  EXPECT_FALSE(server_->has_ended());
  EXPECT_FALSE(second->has_ended());
  second.reset();
  EXPECT_TRUE(comes([&] { return server_->has_ended(); }));
}

}  // namespace
}  // namespace switchyard
