// SPDX-License-Identifier: Apache-2.0
//
// store_server.h: the store's server. One thread polls all clients, each with its own buffers, so
// that a slow, silent or hostile client delays nobody. It serves over TCP or an abstract Unix
// socket; over the latter, the kernel's credentials prove that a client runs as the same user.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/socket.h"

namespace switchyard {

class StoreServer {
 public:
  /// Starts serving, as listen_on listens. Null when `address` is already in use.
  /// Errors: kInvalidArgument (TCP without a secret, secret too long), kSystem, kOutOfMemory.
  static std::unique_ptr<StoreServer> start(const Address& address, std::string secret);
  /// Likewise at several addresses of this machine, numbers, on one port that the system chooses.
  static std::unique_ptr<StoreServer> start_at(const std::vector<std::string>& hosts,
                                               std::string secret);
  ~StoreServer();

  /// Of a store that nobody uses in this process any more: it ends once no client is left.
  void end_when_idle();
  /// Takes that back. False when it has ended.
  bool keep_serving();
  /// Of a server whose ranks may still need it: it ends by itself once they no longer do.
  void end_when_over();
  bool has_ended() const;
  /// True while all ranks have left, and it is there to tell them when one is lost that has still
  /// to end (Roster::only_awaits_ends).
  bool only_awaits_ends() const;

  /// The address it serves at, with the actual port; and the same for clients in this process.
  const Address& address() const { return address_; }
  const Address& local_address() const { return local_address_; }
  /// Addresses of this machine, numbers, at which clients that have the secret reached it from
  /// elsewhere.
  std::vector<std::string> met_at() const;

 private:
  class Loop;
  StoreServer(Address address, Address local_address, std::unique_ptr<Loop> loop);
  static std::unique_ptr<StoreServer> start(std::vector<Fd> listeners, const Address& address,
                                            std::string secret);

  Address address_;
  Address local_address_;
  std::unique_ptr<Loop> loop_;
};

}  // namespace switchyard
