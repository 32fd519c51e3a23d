// SPDX-License-Identifier: Apache-2.0
//
// stream_socket.h: how servers listen and clients connect, at an address that may be a name.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/clock.h"
#include "transport/socket.h"

namespace switchyard {

/// A host for listen_on: every interface of this machine.
inline constexpr const char* kEveryInterface = "*";

/// Listening stream sockets, on one port. Clients may know this machine by an address that it does
/// not know itself, so TCP listens as follows:
///
///   a number       at that address; on every interface, with a warning, if no interface has it
///   "localhost"    at 127.0.0.1 and ::1
///   another name   on every interface: here it may stand for 127.0.1.1, or for nothing yet
///
/// Errors: kSystem, kOutOfMemory. If the address is in use and `is_taken` is given, sets it and
/// returns none instead.
std::vector<Fd> listen_on(const Address& address, bool* is_taken = nullptr);

/// The address `asked`, with the port at which `listener` listens.
Address bound_address(const Fd& listener, const Address& asked);
/// Where this process reaches `listener`.
Address local_address(const Fd& listener, const Address& asked);

/// Why there is no connection.
struct NoConnection {
  std::string why{};
  bool is_refused = false;  ///< at every address: the machine is there, and nobody listens
};

/// Tries each address of the name once, for at most 2 s each. nullopt when none answers (yet).
/// Errors: kOutOfMemory, kAborted (interrupted).
std::optional<Fd> connect_to(const Address& address, const Deadline& deadline,
                             NoConnection* why_not = nullptr);

}  // namespace switchyard
