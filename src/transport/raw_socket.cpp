// SPDX-License-Identifier: Apache-2.0

#include "transport/raw_socket.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <netdb.h>

#include "core/fail.h"
#include "core/interrupt.h"

namespace switchyard {

RawAddress RawAddress::of_name(std::string_view name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  require(name.size() + 1 <= sizeof(address.sun_path), Errc::kInvalidArgument,
          "socket: the name \"{}\" has {} characters, must have at most {}", name, name.size(),
          sizeof(address.sun_path) - 1);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  RawAddress raw;
  std::memcpy(&raw.storage, &address, sizeof(address));
  raw.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return raw;
}

RawAddress RawAddress::of_own_end(const Fd& socket) {
  RawAddress raw;
  if (getsockname(socket.get(), raw.get(), &raw.size) != 0) return {};
  return raw;
}

RawAddress RawAddress::of_peer(const Fd& socket) {
  RawAddress raw;
  if (getpeername(socket.get(), raw.get(), &raw.size) != 0) return {};
  return raw;
}

std::string RawAddress::host() const {
  std::array<char, NI_MAXHOST> text{};
  if ((storage.ss_family != AF_INET && storage.ss_family != AF_INET6) ||
      getnameinfo(get(), size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    return "";
  }
  constexpr std::string_view kMapped = "::ffff:";
  const std::string_view host(text.data());
  const bool is_mapped = host.starts_with(kMapped) && host.find('.') != host.npos;
  return std::string(is_mapped ? host.substr(kMapped.size()) : host);
}

int RawAddress::port() const {
  if (storage.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  }
  if (storage.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  }
  return 0;
}

bool RawAddress::is_loopback() const {
  const std::string text = host();
  return text == "::1" || (text.starts_with("127.") && text.find(':') == text.npos);
}

std::string RawAddress::host_elsewhere() const {
  const std::string text = host();
  const bool is_link_local = text.find('%') != text.npos;
  return is_loopback() || is_link_local ? "" : text;
}

Fd open_socket(int family, int type) {
  Fd socket(::socket(family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.has_value()) fail_errno("socket", "open");
  return socket;
}

bool wait_for(const Fd& socket, short events, const Deadline& deadline) {
  pollfd entry{socket.get(), events, 0};
  for (;;) {
    const int count = poll(&entry, 1, std::min(kSliceMs, deadline.remaining_ms()));
    if (count > 0) return true;
    if (count < 0 && errno != EINTR) fail_errno("poll", "socket");
    if (deadline.expired()) return false;
    require(!is_interrupted(), Errc::kAborted, "socket: interrupted while it waited");
  }
}

namespace {

bool is_connected_to_itself(const Fd& socket) {
  const RawAddress own = RawAddress::of_own_end(socket);
  return own.port() > 0 && own.port() == RawAddress::of_peer(socket).port() &&
         own.host() == RawAddress::of_peer(socket).host();
}

}  // namespace

Fd connect_raw(const RawAddress& address, int type, const Deadline& deadline, int& error) {
  Fd socket(::socket(address.storage.ss_family, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.has_value()) {
    error = errno;
    if (error != EAFNOSUPPORT) fail_errno("socket", "open");
    return Fd();  // a machine without IPv6
  }
  // The kernel may give this end the very port that it looks for, where nobody listens yet. Whoever
  // comes to listen there can, while this end holds it.
  const int is_on = 1;
  setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &is_on, sizeof(is_on));
  for (;;) {
    if (connect(socket.get(), address.get(), address.size) == 0 || errno == EISCONN) {
      if (!is_connected_to_itself(socket)) return socket;
      error = ECONNREFUSED;
      return Fd();
    }
    error = errno;
    if (error == EINTR) continue;
    if (error == EAGAIN &&
        address.storage.ss_family == AF_UNIX) {  // the listener's backlog is full
      poll(nullptr, 0, 10);
    } else if (error == EINPROGRESS || error == EALREADY) {
      wait_for(socket, POLLOUT, deadline);
    } else {
      return Fd();
    }
    require(!is_interrupted(), Errc::kAborted, "socket: interrupted while it connected");
    if (!deadline.expired()) continue;
    error = ETIMEDOUT;
    return Fd();
  }
}

}  // namespace switchyard
