// SPDX-License-Identifier: Apache-2.0
//
// store_server.h: the store's server. One thread polls all clients, each with its own buffers, so
// that a slow, silent or hostile client delays nobody. It serves over TCP or an abstract Unix
// socket; over the latter, the kernel's credentials prove that a client runs as the same user.
#pragma once

#include <memory>
#include <string>

#include "transport/socket.h"

namespace switchyard {

class StoreServer {
 public:
  /// Starts serving. Null when `address` is already in use.
  /// Errors: kInvalidArgument (TCP without a secret, secret too long), kSystem.
  static std::unique_ptr<StoreServer> start(const Address& address, std::string secret);
  ~StoreServer();

  /// Of a server whose ranks may still need it: it ends by itself once they no longer do.
  void end_when_over();
  bool has_ended() const;
  /// True while all ranks have left, and it is there to tell them when one is lost that has still
  /// to end (Roster::only_awaits_ends).
  bool only_awaits_ends() const;

  /// The address it serves at, with the actual port.
  const Address& address() const { return address_; }

 private:
  class Loop;
  StoreServer(Address address, std::unique_ptr<Loop> loop);

  Address address_;
  std::unique_ptr<Loop> loop_;
};

}  // namespace switchyard
