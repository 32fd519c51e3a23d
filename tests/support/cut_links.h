// SPDX-License-Identifier: Apache-2.0
//
// cut_links.h: a process whose host is cut off from the network.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <vector>

namespace switchyard::test {

/// From now on nothing that this process sends over its TCP connections arrives, and nothing comes;
/// but none of them ends, here or at the other end.
inline void cut_tcp_links() {
  constexpr int kMaxFds = 1024;
  std::vector<int> connections;
  for (int fd = 0; fd < kMaxFds; ++fd) {
    sockaddr_storage peer{};
    socklen_t size = sizeof(peer);
    if (getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0) continue;
    if (peer.ss_family == AF_INET || peer.ss_family == AF_INET6) connections.push_back(fd);
  }
  for (const int fd : connections) {
    std::array<int, 2> nobody{};
    if (dup(fd) < 0 ||  // keeps it open, so that the other end sees no end
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, nobody.data()) != 0 ||
        dup2(nobody[0], fd) < 0) {
      std::abort();
    }
  }
}

}  // namespace switchyard::test
