// SPDX-License-Identifier: Apache-2.0
//
// message_suite.h: what every engine with messages does for its ranks. `Ranks` as in
// engine_suite.h.
#pragma once

#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include <gmock/gmock.h>

#include "engine/engine.h"
#include "support/errors.h"

namespace switchyard::test {

/// Bytes of a message that its sender and its receiver know.
inline std::byte message_byte(int from, int to, int tag, std::size_t at) {
  return static_cast<std::byte>(17 * from + 5 * to + 3 * tag + static_cast<int>(at * 7 + at / 251));
}

inline MessageBuffer message_buffer(std::size_t bytes) {
  auto memory = std::make_shared<std::vector<std::byte>>(bytes);
  return {memory, memory->data(), bytes};
}

inline MessageBuffer message_of(int from, int to, int tag, std::size_t bytes) {
  const MessageBuffer buffer = message_buffer(bytes);
  for (std::size_t i = 0; i < bytes; ++i) buffer.data[i] = message_byte(from, to, tag, i);
  return buffer;
}

inline void expect_message(const MessageBuffer& buffer, int from, int to, int tag) {
  for (std::size_t i = 0; i < buffer.size_bytes; ++i) {
    ASSERT_EQ(buffer.data[i], message_byte(from, to, tag, i)) << from << to << " " << tag << i;
  }
}

inline void await_messages(Control& control, MessageChannel& channel, int peer,
                           const std::vector<MessageId>& messages) {
  for (const MessageId message : messages) {
    control.wait({Phase::kDispatchReceive, 1, peer}, [&] { return channel.is_done(message); });
  }
}

template <typename Ranks>
class MessageSuite : public ::testing::Test {};
TYPED_TEST_SUITE_P(MessageSuite);

// Every rank starts all its sends before it starts a receive: sizes around those at which
// transports change their ways, none of them among them.
TYPED_TEST_P(MessageSuite, EverySizeReachesEveryRank) {
  const std::vector<std::size_t> sizes{0, 1, 7, 128, 4095, 65537, 300'001};
  for (const int size : {1, 2, 3, 5}) {
    TypeParam::run(size, [&](const Group& group) {
      const auto channel = group.engine().messages().make_channel();
      std::vector<MessageId> sends;
      std::vector<MessageId> receives;
      std::vector<MessageBuffer> received;
      const int own = group.rank();
      for (int peer = 0; peer < size; ++peer) {
        for (std::size_t tag = 0; peer != own && tag < sizes.size(); ++tag) {
          const int t = static_cast<int>(tag);
          sends.push_back(channel->send(peer, t, message_of(own, peer, t, sizes[tag])));
        }
      }
      for (int peer = 0; peer < size; ++peer) {
        for (std::size_t tag = sizes.size(); peer != own && tag-- > 0;) {
          received.push_back(message_buffer(sizes[tag]));
          receives.push_back(channel->receive(peer, static_cast<int>(tag), received.back()));
        }
      }
      await_messages(group.control(), *channel, -1, receives);
      await_messages(group.control(), *channel, -1, sends);
      std::size_t next = 0;
      for (int peer = 0; peer < size; ++peer) {
        for (std::size_t tag = sizes.size(); peer != own && tag-- > 0;) {
          expect_message(received[next++], peer, own, static_cast<int>(tag));
        }
      }
    });
  }
}

TYPED_TEST_P(MessageSuite, SameTagKeepsItsOrder) {
  TypeParam::run(2, [](const Group& group) {
    constexpr int kCount = 50;
    const auto channel = group.engine().messages().make_channel();
    const int peer = 1 - group.rank();
    std::vector<MessageId> all;
    std::vector<MessageBuffer> received;
    for (int i = 0; i < kCount; ++i) {
      all.push_back(
          channel->send(peer, MessageChannel::kMaxTag, message_of(group.rank(), peer, i, 64)));
      received.push_back(message_buffer(64));
      all.push_back(channel->receive(peer, MessageChannel::kMaxTag, received.back()));
    }
    await_messages(group.control(), *channel, peer, all);
    for (int i = 0; i < kCount; ++i) {
      expect_message(received[static_cast<std::size_t>(i)], peer, group.rank(), i);
    }
  });
}

TYPED_TEST_P(MessageSuite, ChannelsNeverMeet) {
  TypeParam::run(2, [](const Group& group) {
    const auto first = group.engine().messages().make_channel();
    const auto second = group.engine().messages().make_channel();
    const int own = group.rank();
    const int peer = 1 - own;
    // Sent on the first channel before the second, received the other way round.
    std::vector<MessageId> sends{first->send(peer, 5, message_of(own, peer, 1, 1000)),
                                 second->send(peer, 5, message_of(own, peer, 2, 1000))};
    const MessageBuffer of_second = message_buffer(1000);
    await_messages(group.control(), *second, peer, {second->receive(peer, 5, of_second)});
    const MessageBuffer of_first = message_buffer(1000);
    await_messages(group.control(), *first, peer, {first->receive(peer, 5, of_first)});
    expect_message(of_first, peer, own, 1);
    expect_message(of_second, peer, own, 2);
    await_messages(group.control(), *first, peer, {sends[0]});
    await_messages(group.control(), *second, peer, {sends[1]});
  });
}

// Nothing is freed under the transport: the buffers are the channel's too.
TYPED_TEST_P(MessageSuite, PendingMessagesMayBeGivenUp) {
  TypeParam::run(2, [](const Group& group) {
    auto channel = group.engine().messages().make_channel();
    const int peer = 1 - group.rank();
    (void)channel->receive(peer, 1, message_buffer(1 << 20));
    (void)channel->send(peer, 2, message_of(group.rank(), peer, 2, 1 << 20));
    group.barrier();
    channel.reset();
    group.barrier();
    const auto next = group.engine().messages().make_channel();
    const MessageId sent = next->send(peer, 1, message_of(group.rank(), peer, 3, 1000));
    const MessageBuffer received = message_buffer(1000);
    await_messages(group.control(), *next, peer, {next->receive(peer, 1, received), sent});
    expect_message(received, peer, group.rank(), 3);
  });
}

TYPED_TEST_P(MessageSuite, SubgroupsHaveMessages) {
  TypeParam::run(4, [](const Group& group) {
    const Group part = group.split(group.rank() % 2, -group.rank());
    const auto channel = part.engine().messages().make_channel();
    const int peer = 1 - part.rank();
    const MessageId sent = channel->send(peer, 1, message_of(group.rank(), 0, 0, 999));
    const MessageBuffer received = message_buffer(999);
    await_messages(part.control(), *channel, peer, {channel->receive(peer, 1, received), sent});
    expect_message(received, (group.rank() + 2) % 4, 0, 0);
  });
}

REGISTER_TYPED_TEST_SUITE_P(MessageSuite, EverySizeReachesEveryRank, SameTagKeepsItsOrder,
                            ChannelsNeverMeet, PendingMessagesMayBeGivenUp, SubgroupsHaveMessages);

}  // namespace switchyard::test
