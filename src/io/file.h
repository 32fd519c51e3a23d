// SPDX-License-Identifier: Apache-2.0
//
// file.h: read-only files, mapped or read whole. Only regular files are accepted, so that a pipe or
// device passed by mistake is an error and not an endless wait.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace switchyard {

/// A file mapped for reading. Pages are loaded when they are touched.
///
/// NOTE: if another process truncates the file while it is mapped, access raises SIGBUS, as with
/// any memory-mapped reader. Replace checkpoints by rename, as write_safetensors does.
class MappedFile {
 public:
  /// Errors: kInvalidArgument when there is no such file or it may not be read, kMalformedFile when
  /// it is not a regular file, kOutOfMemory, kSystem.
  explicit MappedFile(const std::string& path);
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile();

  std::span<const std::byte> bytes() const noexcept { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

/// Reads the whole file. Errors: those of MappedFile; kMalformedFile when it has more than
/// `max_bytes`.
std::string read_text_file(const std::string& path, std::size_t max_bytes);

/// What Git LFS leaves in place of a file that was not downloaded. Errors: kMalformedFile.
void refuse_lfs_pointer(std::string_view start, const std::string& file);

}  // namespace switchyard
