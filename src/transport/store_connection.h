// SPDX-License-Identifier: Apache-2.0
//
// store_connection.h: a client's end of a connection to a StoreServer, after the handshake.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "transport/socket.h"
#include "transport/store_protocol.h"

namespace switchyard {

class StoreConnection {
 public:
  /// Retries until a server answers at `address`: its name, its route or the server itself may be
  /// late, and a server that has many strangers drops who has yet to shake hands. Unless the server
  /// is known to have listened there before: then an address that refuses means that it is gone,
  /// and one that is not reached is an error at once. Both ends prove that they have `secret`.
  /// Errors: kTimeout, kInvalidArgument (the other end has another secret, or is of another user),
  /// kOutOfMemory (one end has no descriptor left), kPeerLost, kSystem, kAborted (interrupted).
  StoreConnection(const Address& address, const std::string& secret, std::int64_t timeout_ms,
                  bool was_served = false);

  const Address& address() const { return address_; }
  const Fd& socket() const { return socket_; }

  /// Sends `request`, under a number of its own, and returns the reply to it. Nothing when the
  /// deadline passed first: that reply is skipped when it comes. Errors: kPeerLost, kSystem,
  /// kTimeout (the server does not read), kInvalidArgument (too large a request).
  std::optional<store_protocol::Reply> ask(store_protocol::Request request,
                                           const Deadline& deadline);

  /// What has come after the last reply; for who reads the socket from now on.
  store_protocol::FrameBuffer take_received() { return std::exchange(received_, {}); }

 private:
  void shake_hands(const std::string& secret, const Deadline& deadline);
  bool receive(const Deadline& deadline);

  Address address_;
  Fd socket_;
  store_protocol::FrameBuffer received_;
  std::uint32_t num_requests_ = 0;
};

}  // namespace switchyard
