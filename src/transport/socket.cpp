// SPDX-License-Identifier: Apache-2.0

#include "transport/socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "core/fail.h"
#include "transport/raw_socket.h"

namespace switchyard {
namespace {

bool is_peer_gone(int error) { return error == EPIPE || error == ECONNRESET; }

// After a failed send: waits for buffer space or throws.
void wait_to_send(const Fd& socket, const Deadline& deadline) {
  if (errno == EINTR) return;
  if (is_peer_gone(errno)) fail(Errc::kPeerLost, "socket: the other end closed the connection");
  if (errno != EAGAIN && errno != EWOULDBLOCK) fail_errno("sendmsg", "socket");
  require(wait_for(socket, POLLOUT, deadline), Errc::kTimeout,
          "socket: the other end does not read");
}

}  // namespace

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

Address Address::parse(std::string_view text) {
  constexpr std::string_view kTcp = "tcp://";
  constexpr std::string_view kUnix = "unix:@";
  Address address;
  if (text.substr(0, kUnix.size()) == kUnix && text.size() > kUnix.size()) {
    address.host = text.substr(kUnix.size());
    RawAddress::of_name(address.host);  // rejects names that are too long
    return address;
  }
  const std::size_t colon = text.rfind(':');
  if (text.substr(0, kTcp.size()) == kTcp && colon > kTcp.size() && colon != text.npos) {
    address.kind = Kind::kTcp;
    address.host = text.substr(kTcp.size(), colon - kTcp.size());
    if (address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']') {
      address.host = address.host.substr(1, address.host.size() - 2);
    }
    const char* end = text.data() + text.size();
    const auto [last, error] = std::from_chars(text.data() + colon + 1, end, address.port);
    if (error == std::errc{} && last == end && address.port >= 0 && address.port <= 65535) {
      return address;
    }
  }
  fail(Errc::kInvalidArgument, "store: address \"{}\", must be tcp://host:port or unix:@name",
       text);
}

std::string Address::text() const {
  if (kind == Kind::kUnix) return "unix:@" + host;
  const bool is_v6 = host.find(':') != host.npos;
  return fmt::format("tcp://{}{}{}:{}", is_v6 ? "[" : "", host, is_v6 ? "]" : "", port);
}

std::optional<PeerIdentity> peer_identity(const Fd& socket) {
  int family = 0;
  socklen_t size = sizeof(family);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_DOMAIN, &family, &size) != 0 || family != AF_UNIX) {
    return std::nullopt;
  }
  ucred credentials{};
  size = sizeof(credentials);
  if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return std::nullopt;
  }
  return PeerIdentity{credentials.uid, credentials.pid};
}

std::string peer_name(const Fd& socket) {
  if (const auto identity = peer_identity(socket)) return fmt::format("process {}", identity->pid);
  const RawAddress raw = RawAddress::of_peer(socket);
  const std::string host = raw.host();
  return host.empty() ? "a client" : fmt::format("{}:{}", host, raw.port());
}

std::pair<Fd, std::string> listen_for_packets() {
  Fd socket = open_socket(AF_UNIX, SOCK_SEQPACKET);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // Bound without a name, the socket gets an abstract one from the kernel (autobind, unix(7)).
  if (bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(sa_family_t)) != 0 ||
      listen(socket.get(), kBacklog) != 0) {
    fail_errno("bind", "unix socket");
  }
  socklen_t size = sizeof(address);
  if (getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    fail_errno("getsockname", "unix socket");
  }
  const std::size_t length = size - offsetof(sockaddr_un, sun_path) - 1;
  return {std::move(socket), std::string(address.sun_path + 1, length)};
}

std::optional<Fd> connect_for_packets(const std::string& name, const Deadline& deadline) {
  int error = 0;
  Fd socket = connect_raw(RawAddress::of_name(name), SOCK_SEQPACKET, deadline, error);
  if (socket.has_value()) return socket;
  if (error == ECONNREFUSED || error == ENOENT) return std::nullopt;
  require(error != ETIMEDOUT, Errc::kTimeout, "connect: unix:@{} does not answer", name);
  errno = error;
  fail_errno("connect", "unix:@" + name);
}

std::optional<Fd> accept_one(const Fd& listener, const Deadline& deadline) {
  for (;;) {
    Fd socket(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.has_value()) return socket;
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR && errno != ECONNABORTED) {
      fail_errno("accept", "unix socket");
    }
    if (!wait_for(listener, POLLIN, deadline)) return std::nullopt;
  }
}

bool is_transient(int error) noexcept {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

bool wait_readable(const Fd& socket, const Deadline& deadline) {
  return wait_for(socket, POLLIN, deadline);
}

void send_all(const Fd& socket, std::span<const std::byte> bytes, const Deadline& deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    } else {
      wait_to_send(socket, deadline);
    }
  }
}

void send_packet(const Fd& socket, std::span<const std::byte> packet, int fd,
                 const Deadline& deadline) {
  iovec part{const_cast<std::byte*>(packet.data()), packet.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd >= 0) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof(int));
  }
  while (sendmsg(socket.get(), &message, MSG_NOSIGNAL) < 0) wait_to_send(socket, deadline);
}

std::optional<Fd> receive_packet(const Fd& socket, std::span<std::byte> packet,
                                 const Deadline& deadline) {
  iovec part{packet.data(), packet.size()};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr message{};
  ssize_t size = -1;
  while (size < 0) {
    message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    size = recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC);
    if (size >= 0) break;
    if (is_peer_gone(errno)) fail(Errc::kPeerLost, "socket: the other end closed the connection");
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) fail_errno("recvmsg", "socket");
    if (!wait_for(socket, POLLIN, deadline)) return std::nullopt;
  }
  Fd fd;
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    int raw = -1;
    std::memcpy(&raw, CMSG_DATA(header), sizeof(int));
    fd = Fd(raw);
  }
  require(size != 0, Errc::kPeerLost, "socket: the other end closed the connection");
  require(static_cast<std::size_t>(size) == packet.size() && (message.msg_flags & MSG_TRUNC) == 0,
          Errc::kSystem, "socket: a packet of {} bytes, must be {}", size, packet.size());
  if ((message.msg_flags & MSG_CTRUNC) != 0 && !fd.has_value()) {  // the kernel dropped it
    errno = EMFILE;
    fail_errno("recvmsg", "descriptor of a peer");
  }
  return fd;
}

}  // namespace switchyard
