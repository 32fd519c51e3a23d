// SPDX-License-Identifier: Apache-2.0
//
// store_server.h: the store's server: one thread and one poll(2) over all clients, each with its
// own buffers, so that a client which is slow, silent or hostile delays nobody. Served over TCP or
// an abstract Unix socket; over the latter the kernel vouches that a client runs as the same user.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "transport/socket.h"

namespace switchyard {

class StoreServer {
 public:
  /// Serves from here on. Null when somebody serves at `address` already.
  /// Errors: kInvalidArgument (TCP without a secret), kSystem.
  static std::unique_ptr<StoreServer> start(const Address& address, std::string secret);
  ~StoreServer();

  /// Where it serves, with the true port.
  const Address& address() const { return address_; }

 private:
  class Loop;
  StoreServer(Address address, std::unique_ptr<Loop> loop);

  Address address_;
  std::unique_ptr<Loop> loop_;
};

/// Compares without telling, by its duration, how much is equal.
bool secrets_equal(const std::string& given, const std::string& wanted) noexcept;

/// A secret that nobody guesses: 32 hexadecimal digits. Errors: kSystem.
std::string make_secret();

/// Errors: kInvalidArgument when `address` is TCP and there is no secret, or it is too long.
void require_secret(const Address& address, const std::string& secret);

}  // namespace switchyard
