// SPDX-License-Identifier: Apache-2.0
//
// above_stdio.h: keeps our descriptors apart from stdin, stdout and stderr of a program that was
// started without them: what it prints must not go into a socket or a file of ours.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

namespace switchyard {

/// The same file under a number above those three, closed on exec; -1, with errno, when `fd` is -1
/// or there is no such number.
inline int above_stdio(int fd) noexcept {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  const int moved = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int error = errno;
  close(fd);
  errno = error;
  return moved;
}

}  // namespace switchyard
