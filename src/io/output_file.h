// SPDX-License-Identifier: Apache-2.0
//
// output_file.h: a file that appears whole or not at all, whatever ends the program: until commit()
// it has no name, where the file system can do that. Symbolic links are followed, an existing file
// keeps its mode, and what is no regular file (a device, a pipe) is written to and never replaced.
// So is a descriptor of this process (/dev/stdout, /dev/fd/3), whatever is behind it. Where a file
// may be written but not replaced (a mount point, a folder without write permission), commit()
// copies into it, and an end in between leaves a part.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace switchyard {

/// Throws unless an OutputFile can be made: `path` is empty, a folder, a descriptor not open for
/// writing, or a new file in a folder that is not there or may not be written. `option` begins the
/// message. Errors: kInvalidArgument.
void check_output_path(const char* option, const std::string& path);

class OutputFile {
 public:
  /// Errors: kInvalidArgument (see check_output_path), kSystem.
  explicit OutputFile(const std::string& path);
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  /// Errors: kSystem.
  void write(const void* data, std::size_t num_bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  /// Call it last. Errors: kSystem.
  void commit();

 private:
  void share(int descriptor);
  void open_device();
  void open_unnamed();
  void open_elsewhere();
  bool take_place();
  void write_through();

  std::string path_;       ///< of a file: with links resolved
  std::string temporary_;  ///< name until commit; empty: none
  int descriptor_ = -1;
  bool is_device_ = false;
};

/// Writes a whole file. Errors: those of OutputFile.
void write_file(const std::string& path, std::string_view text);

}  // namespace switchyard
