// SPDX-License-Identifier: Apache-2.0
//
// socket.h: packet sockets, and what stream sockets share with them, with deadlines. All sockets
// are non-blocking and closed on exec. Unix sockets use abstract names only: they leave no file and
// vanish with their process. Waits end with kAborted when the program interrupts them.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "core/above_stdio.h"
#include "core/clock.h"

namespace switchyard {

/// An owned file descriptor, never one of stdin, stdout and stderr; -1 means none.
class Fd {
 public:
  Fd() = default;
  /// Takes what a system call returned, and moves it where it is one of those three.
  explicit Fd(int fd) noexcept : fd_(above_stdio(fd)) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();

  int get() const noexcept { return fd_; }
  bool has_value() const noexcept { return fd_ >= 0; }
  void reset() noexcept { Fd().swap(*this); }
  void swap(Fd& other) noexcept { std::swap(fd_, other.fd_); }

 private:
  int fd_ = -1;
};

/// Where a store listens: "tcp://host:port", "tcp://[::1]:port" or "unix:@name".
struct Address {
  enum class Kind { kTcp, kUnix };
  Kind kind = Kind::kUnix;
  std::string host;  ///< tcp: host name or address; unix: the abstract name without '@'
  int port = 0;      ///< tcp only; 0: the system chooses

  /// Errors: kInvalidArgument.
  static Address parse(std::string_view text);
  std::string text() const;
};

/// The process at the other end of a Unix socket, as the kernel reports it. nullopt for TCP.
struct PeerIdentity {
  uid_t uid = 0;
  pid_t pid = 0;
};
std::optional<PeerIdentity> peer_identity(const Fd& socket);

/// Who is at the other end, for messages: "127.0.0.1:4711" or "process 12".
std::string peer_name(const Fd& socket);

/// A packet socket (SOCK_SEQPACKET) and its abstract name, chosen by the kernel, without '@'.
std::pair<Fd, std::string> listen_for_packets();
/// nullopt when nobody listens there. Errors: kSystem, kTimeout.
std::optional<Fd> connect_for_packets(const std::string& name, const Deadline& deadline);
/// nullopt when nobody connected before the deadline.
std::optional<Fd> accept_one(const Fd& listener, const Deadline& deadline);

/// True for the errno of a call on a socket that may succeed later.
bool is_transient(int error) noexcept;

/// False when the deadline passed first.
bool wait_readable(const Fd& socket, const Deadline& deadline);

/// Sends all bytes. Errors: kPeerLost (the other end closed), kTimeout, kSystem.
void send_all(const Fd& socket, std::span<const std::byte> bytes, const Deadline& deadline);

/// Sends one packet and, unless `fd` is -1, a descriptor (SCM_RIGHTS). Errors: kPeerLost, kTimeout,
/// kSystem.
void send_packet(const Fd& socket, std::span<const std::byte> packet, int fd,
                 const Deadline& deadline);

/// Receives one packet of exactly `packet.size()` bytes and returns the descriptor that came with
/// it, if any. nullopt when the deadline passed first. Errors: kPeerLost; kOutOfMemory when this
/// process has no room for the descriptor; kSystem, also for a packet of another size.
std::optional<Fd> receive_packet(const Fd& socket, std::span<std::byte> packet,
                                 const Deadline& deadline);

}  // namespace switchyard
