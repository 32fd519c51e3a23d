// SPDX-License-Identifier: Apache-2.0
//
// memory_file.h: an unnamed file in memory that other processes open through this process's
// /proc/PID/fd. It disappears with its owner.
#pragma once

#include <string>

namespace switchyard::cli {

class MemoryFile {
 public:
  /// `verb` is the prefix of error messages. Errors: kSystem.
  MemoryFile(const char* verb, const std::string& text = {});
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile();

  int fd() const { return fd_; }
  std::string path() const;
  /// Returns everything written so far.
  std::string text() const;

 private:
  int fd_;
};

}  // namespace switchyard::cli
