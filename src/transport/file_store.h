// SPDX-License-Identifier: Apache-2.0
//
// file_store.h: a store in one file that all ranks open, on a disk or a shared file system.
//
//   file    kMagic, then records: u32 key bytes, u32 value bytes, key, value
//
// The newest record of a key counts. A writer holds the file's lock; what a writer that was killed
// left unfinished is overwritten by the next. Nobody deletes the file: it is the caller's.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>

#include "transport/socket.h"
#include "transport/store.h"

namespace switchyard {

class FileStore final : public Store {
 public:
  /// Creates the file when there is none. `timeout_ms` holds for each `set`.
  /// Errors: kInvalidArgument (another user's, or not a store), kTimeout (locked), kSystem.
  FileStore(const std::string& path, std::int64_t timeout_ms);

  void set(const std::string& key, const std::string& value) override {
    set_within(key, value, timeout_ms_);
  }
  void set_within(const std::string& key, const std::string& value, std::int64_t ms) override;
  std::optional<std::string> get(const std::string& key, const Deadline& deadline) override;

 private:
  void check_owner() const;
  bool lock(int operation, const Deadline& deadline) const;
  void read_new_records();
  void write_at_end(const std::string& bytes);

  std::mutex mutex_;
  std::string path_;
  std::int64_t timeout_ms_;
  Fd file_;
  std::int64_t end_ = 0;  ///< of the last whole record that was read
  std::unordered_map<std::string, std::string> values_;
};

}  // namespace switchyard
