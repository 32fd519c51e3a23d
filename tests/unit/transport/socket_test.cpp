// SPDX-License-Identifier: Apache-2.0

#include "transport/socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "support/ranks.h"
#include "transport/shared_memory.h"
#include "transport/stream_socket.h"

namespace switchyard {
namespace {

using test::error_of;
using ::testing::HasSubstr;

Deadline soon() { return Deadline::after_ms(5000); }

TEST(FdTest, IsNeverStdinStdoutOrStderr) {
  const int saved = dup(STDIN_FILENO);
  close(STDIN_FILENO);
  const Fd fd(open("/dev/null", O_RDONLY));
  EXPECT_GT(fd.get(), STDERR_FILENO);
  EXPECT_EQ(fcntl(STDIN_FILENO, F_GETFD), -1);
  dup2(saved, STDIN_FILENO);
  close(saved);
}

struct Pair {
  Fd client;
  Fd server;
};

Pair packet_pair() {
  auto [listener, name] = listen_for_packets();
  Pair pair;
  pair.client = *connect_for_packets(name, soon());
  pair.server = *accept_one(listener, soon());
  return pair;
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

TEST(AddressTest, ParsesWhatItPrints) {
  for (const char* text : {"tcp://127.0.0.1:4000", "tcp://host-1.example:0", "tcp://[::1]:65535",
                           "unix:@name", "unix:@a-b/c"}) {
    EXPECT_EQ(Address::parse(text).text(), text);
  }
  EXPECT_EQ(Address::parse("tcp://[::1]:80").host, "::1");
  EXPECT_EQ(Address::parse("unix:@x").host, "x");
}

TEST(AddressTest, RefusesOthers) {
  for (const char* text :
       {"", "tcp", "tcp://", "tcp://:1", "tcp://h", "tcp://h:", "tcp://h:65536", "tcp://h:1x",
        "tcp://h:-1", "unix:", "unix:@", "unix:/path", "http://h:1", "file:///x"}) {
    const Error error = error_of([&] { Address::parse(text); });
    EXPECT_EQ(error.code(), Errc::kInvalidArgument) << text;
    EXPECT_THAT(error.what(), HasSubstr("must be tcp://host:port or unix:@name"));
  }
  EXPECT_THAT(error_of([] { Address::parse("unix:@" + std::string(108, 'x')); }).what(),
              HasSubstr("108 characters, must have at most 107"));
}

TEST(PacketTest, KeepsItsEdges) {
  const Pair pair = packet_pair();
  send_packet(pair.client, bytes_of("one"), -1, soon());
  send_packet(pair.client, bytes_of("two"), -1, soon());
  std::string got(3, ' ');
  for (const char* wanted : {"one", "two"}) {
    const auto fd = receive_packet(pair.server, std::as_writable_bytes(std::span(got)), soon());
    ASSERT_TRUE(fd.has_value());
    EXPECT_FALSE(fd->has_value());
    EXPECT_EQ(got, wanted);
  }
}

TEST(PacketTest, CarriesADescriptorThatIsClosedOnExec) {
  const Pair pair = packet_pair();
  const Fd memory = make_shared_memory("test", 4096);
  send_packet(pair.client, bytes_of("x"), memory.get(), soon());
  std::string got(1, ' ');
  const auto fd = receive_packet(pair.server, std::as_writable_bytes(std::span(got)), soon());
  ASSERT_TRUE(fd && fd->has_value());
  EXPECT_NE(fd->get(), memory.get());
  EXPECT_EQ(fcntl(fd->get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  Mapping(memory, 4096).data()[7] = std::byte{9};
  EXPECT_EQ(Mapping(*fd, 4096).data()[7], std::byte{9});
}

TEST(PacketTest, NothingBeforeTheDeadline) {
  const Pair pair = packet_pair();
  std::string got(1, ' ');
  EXPECT_FALSE(
      receive_packet(pair.server, std::as_writable_bytes(std::span(got)), Deadline::after_ms(30)));
}

TEST(PacketTest, OtherSizeIsAnError) {
  for (const std::size_t size : {1u, 5u}) {
    const Pair pair = packet_pair();
    send_packet(pair.client, bytes_of("abc"), -1, soon());
    std::string got(size, ' ');
    const Error error = error_of(
        [&] { receive_packet(pair.server, std::as_writable_bytes(std::span(got)), soon()); });
    EXPECT_EQ(error.code(), Errc::kSystem);
  }
}

TEST(PacketTest, ClosedEndIsLost) {
  Pair pair = packet_pair();
  pair.client.reset();
  std::string got(1, ' ');
  EXPECT_EQ(error_of([&] {
              receive_packet(pair.server, std::as_writable_bytes(std::span(got)), soon());
            }).code(),
            Errc::kPeerLost);
  EXPECT_EQ(error_of([&] { send_packet(pair.server, bytes_of("x"), -1, soon()); }).code(),
            Errc::kPeerLost);
}

TEST(PacketTest, PeerThatNeverReadsIsATimeout) {
  const Pair pair = packet_pair();
  const std::string packet(4096, 'x');
  const Error error = error_of([&] {
    for (int i = 0; i < 100'000; ++i) {
      send_packet(pair.client, bytes_of(packet), -1, Deadline::after_ms(50));
    }
  });
  EXPECT_EQ(error.code(), Errc::kTimeout);
}

TEST(SocketTest, KernelVouchesForThePeer) {
  const Pair pair = packet_pair();
  for (const Fd* end : {&pair.client, &pair.server}) {
    const auto identity = peer_identity(*end);
    ASSERT_TRUE(identity.has_value());
    EXPECT_EQ(identity->uid, geteuid());
    EXPECT_EQ(identity->pid, getpid());
  }
}

TEST(SocketTest, NobodyThereIsNotAnError) {
  EXPECT_FALSE(connect_for_packets("switchyard-nobody", soon()).has_value());
  EXPECT_FALSE(connect_to(Address::parse("unix:@switchyard-nobody"), soon()).has_value());
  EXPECT_FALSE(connect_to(Address::parse("tcp://127.0.0.1:1"), soon()).has_value());
}

TEST(SocketTest, TakenAddressIsToldOrThrown) {
  const Address address = Address::parse("unix:@switchyard-socket-test");
  const std::vector<Fd> first = listen_on(address);
  bool is_taken = false;
  EXPECT_TRUE(listen_on(address, &is_taken).empty());
  EXPECT_TRUE(is_taken);
  EXPECT_EQ(error_of([&] { listen_on(address); }).code(), Errc::kSystem);
}

TEST(FdTest, ClosesWhatItOwns) {
  const int raw = dup(STDERR_FILENO);
  {
    Fd first(raw);
    Fd second(std::move(first));
    EXPECT_FALSE(first.has_value());  // NOLINT(bugprone-use-after-move): the point of the test
    EXPECT_EQ(second.get(), raw);
  }
  EXPECT_EQ(fcntl(raw, F_GETFD), -1);
}

}  // namespace
}  // namespace switchyard
