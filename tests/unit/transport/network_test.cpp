// SPDX-License-Identifier: Apache-2.0

#include "transport/network.h"

#include <algorithm>

#include <gmock/gmock.h>

#include "switchyard/log.h"

#include "core/clock.h"
#include "transport/lookup.h"
#include "transport/stream_socket.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(NetworkTest, AddressesOfOtherHostsComeIpv4First) {
  EXPECT_THAT(
      reachable_addresses({{"lo", true, true, 0, {"127.0.0.1", "::1"}},
                           {"eth0", true, false, 0, {"2001:db8::7", "fe80::1%eth0", "192.0.2.7"}},
                           {"eth1", false, false, 0, {"198.51.100.7"}},
                           {"eth2", true, false, 0, {"203.0.113.7", "2001:db8::8"}}}),
      ElementsAre("192.0.2.7", "203.0.113.7", "2001:db8::7", "2001:db8::8"));
  EXPECT_THAT(reachable_addresses({{"lo", true, true, 0, {"127.0.0.1"}}}), IsEmpty());
}

TEST(NetworkTest, ServerOfThisMachineIsReachedAtItsAddresses) {
  const std::vector<NetworkInterface> interfaces = network_interfaces();
  if (std::ranges::none_of(interfaces, &NetworkInterface::is_up)) {
    GTEST_SKIP() << "no interface is up";
  }
  const Address everywhere{Address::Kind::kTcp, "0.0.0.0", 0};
  const std::vector<Fd> listeners = listen_on(everywhere);
  const int port = bound_address(listeners.at(0), everywhere).port;
  for (const NetworkInterface& one : interfaces) {
    for (const std::string& address : one.addresses) {
      if (!one.is_up || address.find(':') != address.npos) continue;
      EXPECT_TRUE(
          connect_to({Address::Kind::kTcp, address, port}, Deadline::after_ms(5000)).has_value())
          << one.name << " " << address;
    }
  }
}

TEST(ListenTest, NamesListenOnEveryInterfaceAndNumbersOnOne) {
  const auto is_reached = [](const std::vector<Fd>& listeners, const std::string& host) {
    const Address asked{Address::Kind::kTcp, host, 0};
    const Address address = bound_address(listeners.at(0), asked);
    return connect_to(address, Deadline::after_ms(5000)).has_value();
  };
  const std::vector<Fd> number = listen_on(Address::parse("tcp://127.0.0.5:0"));
  EXPECT_TRUE(is_reached(number, "127.0.0.5"));
  EXPECT_FALSE(is_reached(number, "127.0.0.6"));
  const Address name = Address::parse("tcp://node0.invalid:0");
  const std::vector<Fd> every = listen_on(name);
  EXPECT_TRUE(is_reached(every, "127.0.0.1"));
  EXPECT_TRUE(is_reached(every, "127.0.1.1"));
  EXPECT_EQ(local_address(every.at(0), name).host, "127.0.0.1");
  EXPECT_TRUE(is_reached(listen_on({Address::Kind::kTcp, kEveryInterface, 0}), "127.0.1.1"));
  const std::vector<Fd> localhost = listen_on(Address::parse("tcp://localhost:0"));
  EXPECT_TRUE(is_reached(localhost, "127.0.0.1"));
  EXPECT_FALSE(is_reached(localhost, "127.0.0.6"));
  bool is_taken = false;
  const Address again = bound_address(localhost.at(0), Address::parse("tcp://localhost:0"));
  EXPECT_TRUE(listen_on(again, &is_taken).empty());
  EXPECT_TRUE(is_taken);
}

TEST(ListenTest, AddressOfNoInterfaceIsServedOnAllWithAWarning) {
  std::vector<std::string> warnings;
  set_log_callback(
      [&](LogLevel, int, std::string_view, std::string_view text) { warnings.emplace_back(text); });
  const Address nat = Address::parse("tcp://192.0.2.77:0");
  const std::vector<Fd> listeners = listen_on(nat);
  set_log_callback({});
  EXPECT_TRUE(
      connect_to(local_address(listeners.at(0), nat), Deadline::after_ms(5000)).has_value());
  EXPECT_THAT(warnings,
              ElementsAre(HasSubstr("no interface of this machine has the address 192.0.2.77")));
}

TEST(LookUpTest, NumbersAreReadAndUnknownNamesSayWhy) {
  const auto host_of = [](const std::string& text) {
    const HostAddresses number = read_number(text, 80);
    return number.found.empty() ? "" : number.found[0].host();
  };
  EXPECT_EQ(host_of("192.0.2.1"), "192.0.2.1");
  EXPECT_EQ(host_of("2001:db8::1"), "2001:db8::1");
  EXPECT_EQ(host_of("::ffff:192.0.2.1"), "192.0.2.1");
  EXPECT_EQ(host_of("node0"), "");
  EXPECT_TRUE(read_number("127.0.0.5", 80).found.at(0).is_loopback());
  EXPECT_EQ(read_number("192.0.2.1", 80).found.at(0).host_elsewhere(), "192.0.2.1");
  EXPECT_EQ(read_number("::1", 80).found.at(0).host_elsewhere(), "");
  const HostAddresses none = look_up("node0.invalid", 80, Deadline::after_ms(300));
  EXPECT_TRUE(none.found.empty());
  EXPECT_NE(none.why_none, "");
}

}  // namespace
}  // namespace switchyard
