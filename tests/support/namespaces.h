// SPDX-License-Identifier: Apache-2.0
//
// namespaces.h: a test in a network of its own, with its own names, where this user may have that.
#pragma once

#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include <net/if.h>

namespace switchyard::test {

/// The loopback interface of a new network namespace is down.
inline bool bring_up_loopback() {
  const int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  ifreq request{};
  std::strcpy(request.ifr_name, "lo");
  request.ifr_flags = IFF_UP | IFF_RUNNING;
  const bool is_up = ioctl(socket, SIOCSIFFLAGS, &request) == 0;
  close(socket);
  return is_up;
}

inline void write_text(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::trunc) << text;
}

/// From now on this thread, and those that it starts, read `file` in place of `path`.
inline bool see_instead(const std::string& path, const std::string& file) {
  return unshare(CLONE_NEWNS) == 0 &&
         mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         mount(file.c_str(), path.c_str(), nullptr, MS_BIND, nullptr) == 0;
}

namespace internal {

constexpr int kNoNamespaces = 77;

// As root in a user namespace of its own, or as it is where that is enough.
inline bool enter_network() {
  const std::string users = "0 " + std::to_string(geteuid()) + " 1";
  const std::string groups = "0 " + std::to_string(getegid()) + " 1";
  if (unshare(CLONE_NEWNET | CLONE_NEWNS) == 0) return true;
  if (unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS) != 0) return false;
  write_text("/proc/self/setgroups", "deny");
  write_text("/proc/self/uid_map", users);
  write_text("/proc/self/gid_map", groups);
  return true;
}

}  // namespace internal

/// Runs `body` in a process that has a network of its own, with loopback alone and down. Returns
/// why it was not run; empty if it was: the test fails where `body` fails or ends the process.
inline std::string run_in_own_network(const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    if (!internal::enter_network()) _exit(internal::kNoNamespaces);
    body();
    std::fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == internal::kNoNamespaces) {
    return "this user may not have network namespaces";
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "see above";
  return "";
}

}  // namespace switchyard::test
