// SPDX-License-Identifier: Apache-2.0

#include "memory_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>

#include "core/above_stdio.h"
#include "core/fail.h"

namespace switchyard::cli {

MemoryFile::MemoryFile(const char* verb, const std::string& text)
    : fd_(above_stdio(memfd_create("switchyard", MFD_CLOEXEC))) {
  require(fd_ >= 0, Errc::kSystem, "{}: cannot make a file in memory", verb);
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t size = write(fd_, text.data() + done, text.size() - done);
    if (size <= 0) {
      close(fd_);
      fail(Errc::kSystem, "{}: cannot write {} bytes to a file in memory", verb, text.size());
    }
    done += static_cast<std::size_t>(size);
  }
}

MemoryFile::~MemoryFile() { close(fd_); }

std::string MemoryFile::path() const { return fmt::format("/proc/{}/fd/{}", getpid(), fd_); }

std::string MemoryFile::text() const {
  std::string text;
  std::array<char, 65536> bytes{};
  for (off_t at = 0;;) {
    const ssize_t size = pread(fd_, bytes.data(), bytes.size(), at);
    if (size <= 0) return text;
    text.append(bytes.data(), static_cast<std::size_t>(size));
    at += size;
  }
}

}  // namespace switchyard::cli
