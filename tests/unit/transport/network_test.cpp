// SPDX-License-Identifier: Apache-2.0

#include "transport/network.h"

#include <algorithm>

#include <gmock/gmock.h>

#include "core/clock.h"
#include "transport/socket.h"

namespace switchyard {
namespace {

using ::testing::ElementsAre;
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
  const Fd listener = listen_on(everywhere);
  const int port = bound_address(listener, everywhere).port;
  for (const NetworkInterface& one : interfaces) {
    for (const std::string& address : one.addresses) {
      if (!one.is_up || address.find(':') != address.npos) continue;
      EXPECT_TRUE(
          connect_to({Address::Kind::kTcp, address, port}, Deadline::after_ms(5000)).has_value())
          << one.name << " " << address;
    }
  }
}

}  // namespace
}  // namespace switchyard
