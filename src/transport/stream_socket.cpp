// SPDX-License-Identifier: Apache-2.0

#include "transport/stream_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "core/fail.h"
#include "core/log.h"
#include "transport/lookup.h"
#include "transport/raw_socket.h"

namespace switchyard {
namespace {

constexpr std::int64_t kAddressMs = 2000;

void switch_option(const Fd& socket, int level, int name, int value) {
  setsockopt(socket.get(), level, name, &value, sizeof(value));
}

// No socket: `error` is why.
Fd try_to_listen(const RawAddress& address, int& error) {
  const int family = address.storage.ss_family;
  Fd socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket.has_value()) {
    error = errno;
    if (error != EAFNOSUPPORT) fail_errno("socket", "open");
    return Fd();
  }
  if (family != AF_UNIX) {
    switch_option(socket, SOL_SOCKET, SO_REUSEADDR, 1);
    // The loopback interface may be down yet. Elsewhere, nobody would come.
    if (address.is_loopback()) switch_option(socket, IPPROTO_IP, IP_FREEBIND, 1);
  }
  if (address.host() == "::") switch_option(socket, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (bind(socket.get(), address.get(), address.size) == 0 && listen(socket.get(), kBacklog) == 0) {
    return socket;
  }
  error = errno;
  return Fd();
}

// Some machines have no IPv6.
Fd listen_everywhere(int port, int& error) {
  Fd socket = try_to_listen(read_number("::", port).found.at(0), error);
  if (socket.has_value() || error == EADDRINUSE) return socket;
  return try_to_listen(read_number("0.0.0.0", port).found.at(0), error);
}

std::vector<Fd> listen_on_loopback(int port, int& error) {
  std::vector<Fd> sockets;
  for (const char* host : {kLoopback, "::1"}) {
    Fd socket = try_to_listen(read_number(host, port).found.at(0), error);
    if (socket.has_value()) {
      port = RawAddress::of_own_end(socket).port();
      sockets.push_back(std::move(socket));
    } else if (error == EADDRINUSE) {
      return {};
    }
  }
  return sockets;
}

std::vector<Fd> one_or_none(Fd socket) {
  std::vector<Fd> sockets;
  if (socket.has_value()) sockets.push_back(std::move(socket));
  return sockets;
}

std::vector<Fd> try_to_listen_at(const Address& address, int& error) {
  if (address.kind == Address::Kind::kUnix) {
    return one_or_none(try_to_listen(RawAddress::of_name(address.host), error));
  }
  if (address.host == "localhost") return listen_on_loopback(address.port, error);
  HostAddresses number;
  if (address.host != kEveryInterface) number = read_number(address.host, address.port);
  if (number.found.empty()) return one_or_none(listen_everywhere(address.port, error));
  Fd socket = try_to_listen(number.found[0], error);
  if (socket.has_value() || error != EADDRNOTAVAIL) return one_or_none(std::move(socket));
  log(LogLevel::kWarn, "store",
      "no interface of this machine has the address {}; serves on every interface, port {}",
      address.host, address.port);
  return one_or_none(listen_everywhere(address.port, error));
}

std::string words_of(int error) {
  return error == ETIMEDOUT ? "does not answer" : std::system_category().message(error);
}

// None of these passes while a client waits.
bool is_shortage(int error) { return error == EMFILE || error == ENFILE || error == ENOMEM; }

}  // namespace

std::vector<Fd> listen_on(const Address& address, bool* is_taken) {
  int error = 0;
  std::vector<Fd> sockets = try_to_listen_at(address, error);
  if (!sockets.empty()) return sockets;
  if (error == EADDRINUSE && is_taken != nullptr) {
    *is_taken = true;
    return sockets;
  }
  errno = error;
  fail_errno("bind", address.text());
}

Address bound_address(const Fd& listener, const Address& asked) {
  Address address = asked;
  if (asked.kind == Address::Kind::kTcp) address.port = RawAddress::of_own_end(listener).port();
  return address;
}

Address local_address(const Fd& listener, const Address& asked) {
  Address address = bound_address(listener, asked);
  if (asked.kind == Address::Kind::kUnix) return address;
  address.host = RawAddress::of_own_end(listener).host();
  if (address.host == "::" || address.host == "0.0.0.0") address.host = kLoopback;
  return address;
}

std::optional<Fd> connect_to(const Address& address, const Deadline& deadline,
                             NoConnection* why_not) {
  NoConnection none;
  HostAddresses addresses;
  if (address.kind == Address::Kind::kUnix) {
    addresses.found.push_back(RawAddress::of_name(address.host));
  } else {
    addresses = look_up(address.host, address.port, deadline);
  }
  none.why = addresses.why_none;
  none.is_refused = !addresses.found.empty();
  auto num_left = static_cast<std::int64_t>(addresses.found.size());
  for (const RawAddress& one : addresses.found) {
    int error = 0;
    const std::int64_t ms = std::min(kAddressMs, deadline.remaining_ms() / num_left--);
    Fd socket = connect_raw(one, SOCK_STREAM, Deadline::after_ms(ms), error);
    if (socket.has_value()) {
      if (address.kind == Address::Kind::kTcp) switch_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
      return socket;
    }
    if (is_shortage(error)) {
      errno = error;
      fail_errno("connect", address.text());
    }
    const bool is_number = one.host() == address.host || one.host().empty();
    none.why = is_number ? words_of(error) : fmt::format("{}: {}", one.host(), words_of(error));
    none.is_refused = none.is_refused && (error == ECONNREFUSED || error == ENOENT);
  }
  if (why_not != nullptr) *why_not = std::move(none);
  return std::nullopt;
}

}  // namespace switchyard
