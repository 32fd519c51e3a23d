// SPDX-License-Identifier: Apache-2.0
//
// raw_socket.h: what stream and packet sockets share: addresses as the system has them, waits with
// deadlines that notice an interrupted program.
#pragma once

#include <sys/socket.h>

#include <optional>
#include <string>
#include <string_view>

#include "core/clock.h"
#include "transport/socket.h"

namespace switchyard {

inline constexpr int kBacklog = 1024;  ///< connections that wait to be accepted
inline constexpr const char* kLoopback = "127.0.0.1";

/// A socket address of any family.
struct RawAddress {
  sockaddr_storage storage{};
  socklen_t size = sizeof(sockaddr_storage);

  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }

  /// Of an abstract Unix socket. Errors: kInvalidArgument (the name is too long).
  static RawAddress of_name(std::string_view name);
  /// Of this end of a socket, or of the other. Empty host when it has none.
  static RawAddress of_own_end(const Fd& socket);
  static RawAddress of_peer(const Fd& socket);

  /// "192.0.2.1" or "fe80::1%eth0"; empty for other families. An IPv4 address within an IPv6 one is
  /// shown as what it is.
  std::string host() const;
  int port() const;  ///< 0 for other families
  bool is_loopback() const;
  /// The host, if other machines may reach it there; else empty.
  std::string host_elsewhere() const;
};

/// Non-blocking and closed on exec. Errors: kSystem, kOutOfMemory.
Fd open_socket(int family, int type);

/// True when `events` (or a hang-up) occurred before the deadline. Errors: kAborted (interrupted).
bool wait_for(const Fd& socket, short events, const Deadline& deadline);

/// No socket: `error` is why; ETIMEDOUT when the deadline passed first. Errors: kOutOfMemory,
/// kAborted.
Fd connect_raw(const RawAddress& address, int type, const Deadline& deadline, int& error);

}  // namespace switchyard
