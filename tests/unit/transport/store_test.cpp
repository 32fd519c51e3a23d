// SPDX-License-Identifier: Apache-2.0
//
// Stores: the same behaviour in process, over TCP, over Unix sockets, in a file and through the
// caller's functions.

#include "transport/store.h"

#include <sys/socket.h>

#include <array>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "support/ranks.h"
#include "support/store_world.h"
#include "transport/prefix_store.h"
#include "transport/secret.h"
#include "transport/store_protocol.h"
#include "transport/stream_socket.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::HasSubstr;

class StoreTest : public ::testing::TestWithParam<const char*> {};

TEST_P(StoreTest, ReturnsWhatWasSet) {
  const StoreWorld world(GetParam());
  const auto first = world.client();
  const auto second = world.client();
  first->set("key", "value");
  EXPECT_EQ(second->get("key", soon()), "value");
  second->set("key", std::string("with \0 and \n", 12));
  EXPECT_EQ(first->get("key", Deadline::after_ms(0)), std::string("with \0 and \n", 12));
  first->set("", "");
  EXPECT_EQ(second->get("", soon()), "");
}

TEST_P(StoreTest, MissingKeyIsNothingAtTheDeadline) {
  const StoreWorld world(GetParam());
  const auto client = world.client();
  const std::int64_t start = now_ns();
  EXPECT_EQ(client->get("missing", Deadline::after_ms(100)), std::nullopt);
  EXPECT_GE(now_ns() - start, 95'000'000);
  EXPECT_EQ(client->get("missing", Deadline::after_ms(0)), std::nullopt);
  client->set("missing", "no more");
  EXPECT_EQ(client->get("missing", soon()), "no more");
}

TEST_P(StoreTest, GetWaitsForSet) {
  const StoreWorld world(GetParam());
  const auto reader = world.client();
  std::jthread writer([&] {
    const auto client = world.client();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    client->set("late", "but here");
  });
  EXPECT_EQ(reader->get("late", soon()), "but here");
}

TEST_P(StoreTest, ManyClientsAtOnce) {
  constexpr int kClients = 8;
  constexpr int kKeys = 50;
  const StoreWorld world(GetParam());
  std::vector<std::jthread> threads;
  std::atomic<int> num_right = 0;
  for (int client = 0; client < kClients; ++client) {
    threads.emplace_back([&, client] {
      const auto store = world.client();
      const auto key = [](int who, int i) { return std::to_string(who) + "/" + std::to_string(i); };
      for (int i = 0; i < kKeys; ++i) {
        store->set(key(client, i), std::to_string(client * i));
        const int peer = (client + 1) % kClients;
        num_right += store->get(key(peer, i), soon()) == std::to_string(peer * i) ? 1 : 0;
      }
    });
  }
  threads.clear();
  EXPECT_EQ(num_right, kClients * kKeys);
}

TEST_P(StoreTest, PrefixesAreApart) {
  const StoreWorld world(GetParam());
  const auto base = world.client();
  PrefixStore first("a/", base);
  PrefixStore second("b/", base);
  first.set("key", "1");
  EXPECT_EQ(second.get("key", Deadline::after_ms(0)), std::nullopt);
  EXPECT_EQ(base->get("a/key", soon()), "1");
}

INSTANTIATE_TEST_SUITE_P(Kinds, StoreTest,
                         ::testing::Values("hash", "tcp", "unix", "file", "functions"));

TEST(StoreServerTest, TcpNeedsASecret) {
  const Address address = Address::parse("tcp://127.0.0.1:0");
  expect_invalid("SWITCHYARD_SECRET", [&] { StoreServer::start(address, ""); });
  EXPECT_EQ(error_of([&] { SocketStore(address, "", 100); }).code(), Errc::kInvalidArgument);
}

// It accepts any proof, as who does not know the secret must.
TEST(StoreServerTest, ServerWithoutTheSecretIsRefused) {
  const Address address = fresh_unix_address();
  const std::vector<Fd> listeners = listen_on(address);
  const std::jthread server([&] {
    const Fd socket = *accept_one(listeners.at(0), soon());
    for (std::uint32_t id = 1; id <= 2; ++id) {
      (void)wait_readable(socket, soon());
      std::array<char, 1024> bytes;
      (void)recv(socket.get(), bytes.data(), bytes.size(), 0);
      const std::string reply = encode(store_protocol::Reply{store_protocol::Status::kOk, id,
                                                             std::string(kChallengeBytes, 's')});
      send_all(socket, std::as_bytes(std::span(reply)), soon());
    }
  });
  expect_invalid("does not prove that it has the secret",
                 [&] { SocketStore(address, "sesame", kStoreTimeoutMs); });
}

TEST(StoreServerTest, FramesAreTheSameOnEveryMachine) {
  EXPECT_EQ(
      encode(store_protocol::Request{store_protocol::Operation::kSet, 0x01020304, 5, "k", "v"}),
      std::string("\x0F\0\0\0\x02\x04\x03\x02\x01\x05\0\0\0\x01\0\0\0kv", 19));
  EXPECT_EQ(encode(store_protocol::Reply{store_protocol::Status::kFull, 258, "x"}),
            std::string("\x06\0\0\0\x03\x02\x01\0\0x", 10));
}

TEST(StoreServerTest, UnixNeedsNone) {
  const auto server = StoreServer::start(fresh_unix_address(), "");
  SocketStore(server->address(), "", kStoreTimeoutMs).set("a", "b");
}

TEST(StoreServerTest, SecondServerFindsTheAddressTaken) {
  const Address address = fresh_unix_address();
  auto first = StoreServer::start(address, "");
  EXPECT_EQ(StoreServer::start(address, ""), nullptr);
  first.reset();
  EXPECT_NE(StoreServer::start(address, ""), nullptr);
}

TEST(StoreServerTest, ClientWaitsForAServerToCome) {
  const Address address = fresh_unix_address();
  std::unique_ptr<StoreServer> server;
  std::jthread starter([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    server = StoreServer::start(address, "");
  });
  SocketStore(address, "", kStoreTimeoutMs).set("a", "b");
  starter.join();
}

TEST(StoreServerTest, NoServerIsATimeout) {
  expect_error(Errc::kPeerLost, "nobody serves unix:@",
               [] { SocketStore(fresh_unix_address(), "", 20'000, true); });
  expect_error(Errc::kTimeout, "nobody serves at unix:@switchyard-store-test",
               [] { SocketStore(fresh_unix_address(), "", 100); });
  expect_error(Errc::kTimeout, "within 0.1 s (Connection refused)",
               [] { SocketStore(Address::parse("tcp://127.0.0.1:9"), "sesame", 100); });
}

TEST(SecretTest, ProofsDependOnAllTheyAreMadeFrom) {
  const Challenges challenges{"client", "server"};
  EXPECT_EQ(client_proof("secret", challenges), client_proof("secret", challenges));
  EXPECT_NE(client_proof("secret", challenges), client_proof("secre", challenges));
  EXPECT_NE(client_proof("secret", challenges), client_proof("secret", {"client", "other"}));
  EXPECT_NE(client_proof("secret", challenges), client_proof("secret", {"other", "server"}));
  EXPECT_NE(client_proof("secret", challenges), server_proof("secret", challenges));
  EXPECT_NE(derive_secret("secret", "a"), derive_secret("secret", "b"));
  EXPECT_EQ(derive_secret("secret", "a").size(), 64u);
}

TEST(SecretTest, EqualOnlyToItself) {
  EXPECT_TRUE(secrets_equal("", ""));
  EXPECT_TRUE(secrets_equal("abc", "abc"));
  EXPECT_FALSE(secrets_equal("abd", "abc"));
  EXPECT_FALSE(secrets_equal("abcabc", "abc"));
  EXPECT_FALSE(secrets_equal("ab", "abc"));
  EXPECT_FALSE(secrets_equal("abc", ""));
  EXPECT_FALSE(secrets_equal("", "abc"));
  EXPECT_FALSE(secrets_equal(std::string(1, '\0'), ""));
  EXPECT_EQ(make_secret().size(), 32u);
  EXPECT_NE(make_secret(), make_secret());
}

}  // namespace
}  // namespace switchyard
