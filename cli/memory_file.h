// SPDX-License-Identifier: Apache-2.0
//
// memory_file.h: a file without a name, which other processes open by its place in this one's
// descriptors. It is gone when its owner is.
#pragma once

#include <string>

namespace switchyard::cli {

class MemoryFile {
 public:
  /// `verb` begins messages. Errors: kSystem.
  MemoryFile(const char* verb, const std::string& text = {});
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  ~MemoryFile();

  int fd() const { return fd_; }
  std::string path() const;
  /// All that was written, from its start.
  std::string text() const;

 private:
  int fd_;
};

}  // namespace switchyard::cli
