// SPDX-License-Identifier: Apache-2.0

#include "engine/local_messages.h"

#include <gmock/gmock.h>

#include "switchyard/group.h"

#include "support/message_suite.h"
#include "support/ranks.h"

namespace switchyard {
namespace {

using namespace test;

struct MessageRanks {
  static constexpr const char* kName = "local-messages";
  static constexpr std::int64_t kTimeoutMs = kRanksTimeoutMs;
  static void run(int num_ranks, const std::function<void(const Group&)>& body) {
    run_local_ranks(num_ranks, body, {.engine = kName, .timeout_ms = kTimeoutMs});
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Local, MessageSuite, MessageRanks);

TEST(LocalMessagesTest, RanksAddressNoMemoryOfOthers) {
  MessageRanks::run(2, [](const Group& group) {
    EXPECT_STREQ(group.engine_name(), MessageRanks::kName);
    EXPECT_FALSE(group.engine().has_windows());
    EXPECT_TRUE(group.engine().has_messages());
    expect_error(Errc::kNotSupported, "engine \"local-messages\" do not address",
                 [&] { (void)group.engine().windows(); });
  });
}

TEST(LocalMessagesTest, SizesMustBeEqual) {
  run_ranks(2, [](const Group& group) {
    const auto channel = group.engine().messages().make_channel();
    if (group.rank() == 0) {
      const MessageId sent = channel->send(1, 3, message_buffer(10));
      EXPECT_FALSE(channel->is_done(sent));
      group.barrier();
      return;
    }
    const MessageId received = channel->receive(0, 3, message_buffer(12));
    expect_error(Errc::kInternal, "rank 0 sends 10 bytes with tag 3, rank 1 expects 12",
                 [&] { group.control().wait({}, [&] { return channel->is_done(received); }); });
    group.barrier();
  });
}

TEST(LocalMessagesTest, MessageThatNobodySendsHasADeadline) {
  const auto work = [](const Group& group) {
    const auto channel = group.engine().messages().make_channel();
    if (group.rank() == 1) group.control().wait({}, [] { return false; });
    const MessageId received = channel->receive(1, 3, message_buffer(12));
    group.control().wait({Phase::kDispatchReceive, 4, 1},
                         [&] { return channel->is_done(received); });
  };
  expect_error(Errc::kTimeout, "rank 1",
               [&] { run_local_ranks(2, work, {.engine = "local-messages", .timeout_ms = 200}); });
}

}  // namespace
}  // namespace switchyard
