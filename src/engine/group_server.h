// SPDX-License-Identifier: Apache-2.0
//
// group_server.h: the server of a group whose ranks share no memory: rank 0 runs it, and the ranks
// learn through the store at which they met where it is.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/meeting.h"
#include "transport/store_connection.h"

namespace switchyard {

/// Where a server of rank 0 may be reached, and the secret it asks for.
struct ServerAddress {
  std::string secret;
  std::vector<Address> addresses;

  std::string text() const;
  /// Errors: kSystem.
  static ServerAddress parse(const std::string& text);
};

/// Where a group's server may listen.
struct ServerHosts {
  bool have_one_loopback = false;     ///< all ranks reach this machine's: 127.0.0.1 alone
  std::vector<std::string> met_at{};  ///< else these; empty: every interface, as network.h has them
  std::string first{};                ///< what ranks try first: a name of this machine, or empty
};

/// Starts a server on a port that the system chooses; ranks try the addresses in turn. Errors:
/// kSystem, kOutOfMemory.
std::shared_ptr<StoreServer> serve_group(const ServerHosts& hosts, ServerAddress& address);

/// Tries the addresses in turn until one of them proves that it has the secret; `check` is called
/// in between and throws when the set-up should end. Errors: kPeerLost (nobody serves at any of
/// them any more), kTimeout, kOutOfMemory (no descriptor is left, here or at the server).
StoreConnection connect_to_group(const ServerAddress& address, const Deadline& deadline,
                                 const std::function<void()>& check);

/// Collective, after the ranks have met: rank 0 starts a server, all learn where it is.
ServerAddress share_group_server(const Meeting& meeting, int rank,
                                 std::shared_ptr<StoreServer>& server,
                                 const std::function<void()>& check);

}  // namespace switchyard
