// SPDX-License-Identifier: Apache-2.0
//
// Stores: the same behaviour in process, over TCP, over Unix sockets, in a file and through the
// caller's functions; then a hostile world.

#include "transport/store.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "switchyard/log.h"

#include "support/ranks.h"
#include "support/temp_folder.h"
#include "transport/file_store.h"
#include "transport/function_store.h"
#include "transport/hash_store.h"
#include "transport/prefix_store.h"
#include "transport/secret.h"
#include "transport/socket_store.h"
#include "transport/store_protocol.h"
#include "transport/store_server.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::HasSubstr;

constexpr std::int64_t kTimeoutMs = 10'000;

Deadline soon() { return Deadline::after_ms(kTimeoutMs); }

Address fresh_unix_address() {
  static int number = 0;
  return Address::parse("unix:@switchyard-store-test-" + std::to_string(getpid()) + "-" +
                        std::to_string(number++));
}

// A server, if this kind of store has one, and its clients.
class World {
 public:
  explicit World(const std::string& kind) {
    if (kind == "hash" || kind == "functions") {
      hash_ = std::make_shared<HashStore>();
      has_functions_ = kind == "functions";
    } else if (kind == "file") {
      folder_ = std::make_unique<test::TempFolder>();
    } else {
      const bool is_tcp = kind == "tcp";
      server = StoreServer::start(
          is_tcp ? Address::parse("tcp://127.0.0.1:0") : fresh_unix_address(), "sesame");
    }
  }

  std::shared_ptr<Store> client() const {
    if (has_functions_) {
      return std::make_shared<FunctionStore>(
          StoreFunctions{[hash = hash_](const std::string& key, const std::string& value) {
                           hash->set(key, value);
                         },
                         // Does not wait: the library calls it again.
                         [hash = hash_](const std::string& key, std::int64_t) {
                           return hash->get(key, Deadline::after_ms(0));
                         }});
    }
    if (hash_) return hash_;
    if (folder_) return std::make_shared<FileStore>(folder_->file("store"), kTimeoutMs);
    return std::make_shared<SocketStore>(server->address(), "sesame", kTimeoutMs);
  }

  std::unique_ptr<StoreServer> server;

 private:
  std::shared_ptr<HashStore> hash_;
  bool has_functions_ = false;
  std::unique_ptr<test::TempFolder> folder_;
};

class StoreTest : public ::testing::TestWithParam<const char*> {};

TEST_P(StoreTest, ReturnsWhatWasSet) {
  const World world(GetParam());
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
  const World world(GetParam());
  const auto client = world.client();
  const std::int64_t start = now_ns();
  EXPECT_EQ(client->get("missing", Deadline::after_ms(100)), std::nullopt);
  EXPECT_GE(now_ns() - start, 95'000'000);
  EXPECT_EQ(client->get("missing", Deadline::after_ms(0)), std::nullopt);
  client->set("missing", "no more");
  EXPECT_EQ(client->get("missing", soon()), "no more");
}

TEST_P(StoreTest, GetWaitsForSet) {
  const World world(GetParam());
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
  const World world(GetParam());
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
  const World world(GetParam());
  const auto base = world.client();
  PrefixStore first("a/", base);
  PrefixStore second("b/", base);
  first.set("key", "1");
  EXPECT_EQ(second.get("key", Deadline::after_ms(0)), std::nullopt);
  EXPECT_EQ(base->get("a/key", soon()), "1");
}

INSTANTIATE_TEST_SUITE_P(Kinds, StoreTest,
                         ::testing::Values("hash", "tcp", "unix", "file", "functions"));

class SocketStoreTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    set_log_callback([](LogLevel, int, std::string_view, std::string_view) {});  // refusals warn
  }
  void TearDown() override { set_log_callback({}); }

  Fd raw_client(const World& world) { return *connect_to(world.server->address(), soon()); }
  // One that the server knows.
  StoreConnection known_client(const World& world) {
    return StoreConnection(world.server->address(), "sesame", kTimeoutMs);
  }
  void send_text(const Fd& socket, const std::string& text) {
    send_all(socket, std::as_bytes(std::span(text)), soon());
  }
  // True when the server closes the connection after whatever it sends.
  bool is_dropped(const Fd& socket) {
    std::array<char, 1024> bytes;
    while (wait_readable(socket, Deadline::after_ms(5000))) {
      if (recv(socket.get(), bytes.data(), bytes.size(), 0) <= 0) return true;
    }
    return false;
  }
  void expect_serving(const World& world) {
    const auto client = world.client();
    client->set("alive", "yes");
    EXPECT_EQ(client->get("alive", soon()), "yes");
  }
};

TEST_P(SocketStoreTest, WrongSecretIsRefused) {
  const World world(GetParam());
  for (const char* secret : {"Sesame", "sesam", "sesamesesame", "x"}) {
    expect_invalid("refused the secret",
                   [&] { SocketStore(world.server->address(), secret, kTimeoutMs); });
  }
  expect_serving(world);
}

TEST_P(SocketStoreTest, RequestsBeforeTheSecretAreRefused) {
  const World world(GetParam());
  const Fd client = raw_client(world);
  send_text(client, encode(store_protocol::Request{store_protocol::Operation::kSet, 1, 0, "alive",
                                                   "hacked"}));
  EXPECT_TRUE(is_dropped(client));
  const auto honest = world.client();
  EXPECT_EQ(honest->get("alive", Deadline::after_ms(0)), std::nullopt);
}

TEST_P(SocketStoreTest, GarbageAndOversizedFramesAreDropped) {
  const World world(GetParam());
  std::string length_of_4_gib(4, '\xFF');
  std::string bad_key_length = encode(store_protocol::Request{});
  bad_key_length[4 + 9] = '\x7F';
  for (const std::string& text :
       {std::string("GET / HTTP/1.1\r\n\r\n"), length_of_4_gib + "x", std::string(100'000, '\0'),
        bad_key_length, std::string("\x01\x00\x00\x00\x09", 5)}) {
    const Fd client = raw_client(world);
    try {
      send_text(client, text);
    } catch (const Error&) {  // dropped while sending
    }
    EXPECT_TRUE(is_dropped(client));
  }
  expect_serving(world);
}

TEST_P(SocketStoreTest, StrangersAreNamedButDoNotFillTheLog) {
  std::mutex mutex;
  std::vector<std::string> lines;
  set_log_callback([&](LogLevel, int, std::string_view, std::string_view text) {
    const std::lock_guard lock(mutex);
    lines.emplace_back(text);
  });
  {
    const World world(GetParam());
    for (int i = 0; i < 20; ++i) {
      const Fd client = raw_client(world);
      send_text(client, std::string(100, '\xFF'));
      EXPECT_TRUE(is_dropped(client));
    }
  }
  set_log_callback({});
  ASSERT_EQ(lines.size(), 9u);
  EXPECT_THAT(lines[0], ::testing::ContainsRegex("refuses (process [0-9]+|127.0.0.1:[0-9]+), which "
                                                 "does not speak the protocol$"));
  EXPECT_THAT(lines[8], HasSubstr("says no more of others"));
}

TEST_P(SocketStoreTest, OversizedFrameOfAKnownClientIsDroppedAndNeverSentByOurs) {
  const World world(GetParam());
  const StoreConnection known = known_client(world);
  std::string header;
  store_protocol::put_u32(header, store_protocol::kMaxFrameBytes + 1);
  send_text(known.socket(), header);
  EXPECT_TRUE(is_dropped(known.socket()));
  const auto client = world.client();
  expect_invalid("at most 1048576", [&] { client->set("big", std::string(2 << 20, 'x')); });
  client->set("fits", std::string(1'000'000, 'x'));
  EXPECT_EQ(client->get("fits", soon())->size(), 1'000'000u);
}

TEST_P(SocketStoreTest, SilentAndSlowClientsDelayNobody) {
  const World world(GetParam());
  std::vector<Fd> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(raw_client(world));
  const Fd slow = raw_client(world);
  const std::string hello = encode(store_protocol::Request{store_protocol::Operation::kHello, 1, 0,
                                                           std::string(store_protocol::kMagic),
                                                           std::string(kChallengeBytes, 'c')});
  for (const char byte : hello) {  // byte by byte, while other clients are served
    send_text(slow, std::string(1, byte));
    if (byte == hello[10]) expect_serving(world);
  }
  EXPECT_TRUE(wait_readable(slow, soon()));  // the server understood its hello
}

TEST_P(SocketStoreTest, ClientThatNeverReadsIsDropped) {
  const World world(GetParam());
  world.client()->set("big", std::string(1'000'000, 'x'));
  const StoreConnection known = known_client(world);
  const Fd& greedy = known.socket();
  try {
    for (std::uint32_t i = 0; i < 100; ++i) {
      send_text(greedy,
                encode(store_protocol::Request{store_protocol::Operation::kGet, i, 0, "big", {}}));
    }
  } catch (const Error&) {  // dropped while requesting
  }
  expect_serving(world);
  // Data sent before the drop arrives first (TCP reports the drop only after it), then the end.
  std::vector<char> bytes(1 << 20);
  std::size_t num_received = 0;
  ssize_t got = 1;
  while (got > 0 && wait_readable(greedy, soon())) {
    got = recv(greedy.get(), bytes.data(), bytes.size(), 0);
    num_received += got > 0 ? static_cast<std::size_t>(got) : 0;
  }
  EXPECT_LE(got, 0) << "still connected after " << num_received << " bytes";
  EXPECT_LT(num_received, 100'000'000u);
}

TEST_P(SocketStoreTest, ServerThatEndsIsAPeerLost) {
  World world(GetParam());
  const auto client = world.client();
  std::jthread killer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    world.server.reset();
  });
  expect_error(Errc::kPeerLost, "closed the connection", [&] { client->get("never", soon()); });
  killer.join();
  EXPECT_EQ(error_of([&] { client->set("a", "b"); }).code(), Errc::kPeerLost);
}

// What a client says and hears, recorded by a server that speaks the protocol.
TEST_P(SocketStoreTest, SecretNeverTravelsAndProofsCannotBeRepeated) {
  const World world(GetParam());
  const auto say = [&](const Fd& socket, const store_protocol::Request& request) {
    send_text(socket, encode(request));
    store_protocol::FrameBuffer frames;
    std::array<char, 1024> bytes;
    while (wait_readable(socket, soon())) {
      const ssize_t size = recv(socket.get(), bytes.data(), bytes.size(), 0);
      if (size <= 0) break;
      frames.append({bytes.data(), static_cast<std::size_t>(size)});
      if (const auto payload = frames.pop_frame()) return *store_protocol::decode_reply(*payload);
    }
    return store_protocol::Reply{store_protocol::Status::kNothing, 0, {}};
  };
  using Operation = store_protocol::Operation;
  const std::string magic(store_protocol::kMagic);
  const std::string challenge(kChallengeBytes, 'c');
  const Fd first = raw_client(world);
  const Challenges challenges{challenge,
                              say(first, {Operation::kHello, 1, 0, magic, challenge}).value};
  EXPECT_EQ(challenges.server.size(), kChallengeBytes);
  const std::string proof = client_proof("sesame", challenges);
  EXPECT_THAT(proof, ::testing::Not(HasSubstr("sesame")));
  const auto answer = say(first, {Operation::kProof, 2, 0, {}, proof});
  EXPECT_EQ(answer.status, store_protocol::Status::kOk);
  EXPECT_EQ(answer.value, server_proof("sesame", challenges));
  EXPECT_NE(answer.value, proof);
  // The server's challenge differs each time: who recorded a proof has nothing.
  const Fd second = raw_client(world);
  EXPECT_NE(say(second, {Operation::kHello, 1, 0, magic, challenge}).value, challenges.server);
  EXPECT_EQ(say(second, {Operation::kProof, 2, 0, {}, proof}).status,
            store_protocol::Status::kRefused);
}

INSTANTIATE_TEST_SUITE_P(Kinds, SocketStoreTest, ::testing::Values("tcp", "unix"));

TEST(StoreServerTest, TcpNeedsASecret) {
  const Address address = Address::parse("tcp://127.0.0.1:0");
  expect_invalid("SWITCHYARD_SECRET", [&] { StoreServer::start(address, ""); });
  EXPECT_EQ(error_of([&] { SocketStore(address, "", 100); }).code(), Errc::kInvalidArgument);
}

// It accepts any proof, as who does not know the secret must.
TEST(StoreServerTest, ServerWithoutTheSecretIsRefused) {
  const Address address = fresh_unix_address();
  const Fd listener = listen_on(address);
  const std::jthread server([&] {
    const Fd socket = *accept_one(listener, soon());
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
                 [&] { SocketStore(address, "sesame", kTimeoutMs); });
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
  SocketStore(server->address(), "", kTimeoutMs).set("a", "b");
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
  SocketStore(address, "", kTimeoutMs).set("a", "b");
  starter.join();
}

TEST(StoreServerTest, NoServerIsATimeout) {
  expect_error(Errc::kPeerLost, "nobody serves unix:@",
               [] { SocketStore(fresh_unix_address(), "", 20'000, true); });
  expect_error(Errc::kTimeout, "nobody serves at unix:@switchyard-store-test",
               [] { SocketStore(fresh_unix_address(), "", 100); });
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
