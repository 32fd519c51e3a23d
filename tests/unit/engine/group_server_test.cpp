// SPDX-License-Identifier: Apache-2.0

#include "engine/group_server.h"

#include <gtest/gtest.h>

#include "core/clock.h"
#include "support/errors.h"
#include "transport/secret.h"

namespace switchyard {
namespace {

TEST(GroupServerTest, TextNamesSecretAndAddresses) {
  ServerAddress address{make_secret(), {}};
  const auto server = serve_group({.have_one_loopback = true}, address);
  ASSERT_EQ(address.addresses.size(), 1u);
  const ServerAddress read = ServerAddress::parse(address.text());
  EXPECT_EQ(read.secret, address.secret);
  const StoreConnection connection = connect_to_group(read, Deadline::after_ms(5000), [] {});
  EXPECT_EQ(connection.address().port, server->address().port);
}

// Rank 0 said where it serves, so an address that refuses is one that nobody serves any more.
TEST(GroupServerTest, ServerThatIsGoneIsALossAtOnce) {
  ServerAddress address{make_secret(), {}};
  serve_group({.have_one_loopback = true}, address).reset();
  const std::int64_t start = now_ns();
  test::expect_error(Errc::kPeerLost, "rank 0 was lost",
                     [&] { connect_to_group(address, Deadline::after_ms(20'000), [] {}); });
  EXPECT_LE(now_ns() - start, std::int64_t{5'000'000'000});
}

}  // namespace
}  // namespace switchyard
