// SPDX-License-Identifier: Apache-2.0
//
// Stores over sockets in a hostile world: clients without the secret, without manners, or very
// many.

#include <sys/socket.h>

#include <array>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "switchyard/log.h"

#include "support/few_descriptors.h"
#include "support/observe.h"
#include "support/ranks.h"
#include "support/store_world.h"
#include "transport/secret.h"
#include "transport/store_protocol.h"
#include "transport/stream_socket.h"

namespace switchyard {
namespace {

using namespace test;
using ::testing::HasSubstr;

class SocketStoreTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    set_log_callback([](LogLevel, int, std::string_view, std::string_view) {});  // refusals warn
  }
  void TearDown() override { set_log_callback({}); }

  Fd raw_client(const StoreWorld& world) { return *connect_to(world.server->address(), soon()); }
  // One that the server knows.
  StoreConnection known_client(const StoreWorld& world) {
    return StoreConnection(world.server->address(), "sesame", kStoreTimeoutMs);
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
  void expect_serving(const StoreWorld& world) {
    const auto client = world.client();
    client->set("alive", "yes");
    EXPECT_EQ(client->get("alive", soon()), "yes");
  }
};

TEST_P(SocketStoreTest, WrongSecretIsRefused) {
  const StoreWorld world(GetParam());
  for (const char* secret : {"Sesame", "sesam", "sesamesesame", "x"}) {
    expect_invalid("refused the secret",
                   [&] { SocketStore(world.server->address(), secret, kStoreTimeoutMs); });
  }
  expect_serving(world);
}

TEST_P(SocketStoreTest, RequestsBeforeTheSecretAreRefused) {
  const StoreWorld world(GetParam());
  const Fd client = raw_client(world);
  send_text(client, encode(store_protocol::Request{store_protocol::Operation::kSet, 1, 0, "alive",
                                                   "hacked"}));
  EXPECT_TRUE(is_dropped(client));
  const auto honest = world.client();
  EXPECT_EQ(honest->get("alive", Deadline::after_ms(0)), std::nullopt);
}

TEST_P(SocketStoreTest, GarbageAndOversizedFramesAreDropped) {
  const StoreWorld world(GetParam());
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
    const StoreWorld world(GetParam());
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
  const StoreWorld world(GetParam());
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
  const StoreWorld world(GetParam());
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

// Strangers, with and without a hello, have an eighth of 512 descriptors, and the next client is
// let in.
TEST_P(SocketStoreTest, ManyStrangersHaveFewDescriptorsAndDelayNobody) {
  const FewDescriptors few(400);
  const StoreWorld world(GetParam());
  const std::string hello = encode(store_protocol::Request{store_protocol::Operation::kHello, 1, 0,
                                                           std::string(store_protocol::kMagic),
                                                           std::string(kChallengeBytes, 'c')});
  std::vector<Fd> strangers;
  const int num_files = num_open_files();
  for (int i = 0; i < 200; ++i) {
    strangers.push_back(raw_client(world));
    if (i % 2 == 0) send_text(strangers.back(), hello);
  }
  const std::int64_t start = now_ns();
  expect_serving(world);
  EXPECT_LT(seconds_since(start), 3.0);
  EXPECT_LE(num_open_files() - num_files, 200 + 64 + 2);
  for (int i = 1; i < 40; i += 2) EXPECT_TRUE(is_dropped(strangers[static_cast<std::size_t>(i)]));
  expect_serving(world);
}

TEST_P(SocketStoreTest, ClientThatIsDroppedTriesAgain) {
  const Address address =
      GetParam() == std::string("tcp") ? Address::parse("tcp://127.0.0.1:0") : fresh_unix_address();
  std::vector<Fd> listeners = listen_on(address);
  const Address bound = bound_address(listeners.at(0), address);
  std::unique_ptr<StoreServer> server;
  std::jthread late([&] {
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(accept_one(listeners[0], soon()).has_value());
    listeners.clear();
    server = StoreServer::start(bound, "sesame");
  });
  SocketStore(bound, "sesame", kStoreTimeoutMs).set("a", "b");
  late.join();
}

TEST_P(SocketStoreTest, ServerEndsOnceItIsIdle) {
  const StoreWorld world(GetParam());
  StoreServer& server = *world.server;
  auto client = std::make_unique<SocketStore>(server.address(), "sesame", kStoreTimeoutMs);
  server.end_when_idle();
  client->set("a", "b");
  EXPECT_TRUE(server.keep_serving());
  const Fd stranger = raw_client(world);
  client.reset();
  expect_serving(world);
  EXPECT_FALSE(server.has_ended());
  server.end_when_idle();
  const Deadline deadline = soon();
  while (!server.has_ended() && !deadline.expired()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(server.has_ended());
  EXPECT_FALSE(server.keep_serving());
  EXPECT_FALSE(connect_to(server.address(), soon()).has_value());
}

TEST_P(SocketStoreTest, ClientThatNeverReadsIsDropped) {
  const StoreWorld world(GetParam());
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
  StoreWorld world(GetParam());
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
  const StoreWorld world(GetParam());
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

}  // namespace
}  // namespace switchyard
