// SPDX-License-Identifier: Apache-2.0

#include "transport/file_store.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "core/clock.h"
#include "core/fail.h"
#include "core/interrupt.h"

namespace switchyard {
namespace {

constexpr std::string_view kMagic = "switchyard store file 1\n";
constexpr std::uint32_t kMaxTextBytes = 1u << 20;  // of a key or a value, as over sockets
constexpr std::size_t kHeadBytes = 8;
constexpr int kPollMs = 5;

// Held until the end of the scope.
class FileLock {
 public:
  explicit FileLock(const Fd& file) : file_(file) {}
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock() { flock(file_.get(), LOCK_UN); }

 private:
  const Fd& file_;
};

void put_u32(std::string& bytes, std::size_t value) {
  const auto number = static_cast<std::uint32_t>(value);
  bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

std::uint32_t get_u32(const std::string& bytes, std::size_t offset) {
  std::uint32_t value = 0;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

// What is behind `offset` now.
std::string read_from(const Fd& file, std::int64_t offset, const std::string& path) {
  std::string bytes;
  std::array<char, 16384> part;
  for (;;) {
    const ssize_t size = pread(file.get(), part.data(), part.size(),
                               offset + static_cast<std::int64_t>(bytes.size()));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) fail_errno("read", path);
    if (size == 0) return bytes;
    bytes.append(part.data(), static_cast<std::size_t>(size));
  }
}

}  // namespace

FileStore::FileStore(const std::string& path, std::int64_t timeout_ms)
    : path_(path), timeout_ms_(timeout_ms) {
  file_ = Fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (!file_.has_value()) fail_errno("open", path);
  check_owner();
  require(lock(LOCK_EX, Deadline::after_ms(timeout_ms)), Errc::kTimeout,
          "store: file {} is locked for {:.1f} s", path, static_cast<double>(timeout_ms) * 1e-3);
  const FileLock held(file_);
  const std::string begin = read_from(file_, 0, path).substr(0, kMagic.size());
  // A creator that was killed may have left a part of the magic.
  if (begin.size() < kMagic.size() && kMagic.substr(0, begin.size()) == begin) {
    write_at_end(std::string(kMagic));
  } else {
    require(begin == kMagic, Errc::kInvalidArgument,
            "store: {} is a file of another kind; give the path of a new one", path);
    end_ = static_cast<std::int64_t>(kMagic.size());
  }
}

void FileStore::check_owner() const {
  struct stat status {};
  if (fstat(file_.get(), &status) != 0) fail_errno("fstat", path_);
  require(S_ISREG(status.st_mode), Errc::kInvalidArgument,
          "store: {} is not a regular file; give the path of a new one", path_);
  require(status.st_uid == geteuid(), Errc::kInvalidArgument,
          "store: file {} is of user {}, but this is user {}", path_, status.st_uid, geteuid());
}

// False when the deadline passed first. The system's own wait has none.
bool FileStore::lock(int operation, const Deadline& deadline) const {
  while (flock(file_.get(), operation | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) fail_errno("flock", path_);
    if (deadline.expired()) return false;
    require(!is_interrupted(), Errc::kAborted, "store: interrupted while file {} was locked",
            path_);
    poll(nullptr, 0, kPollMs);
  }
  return true;
}

// Stops before a record that is not whole: its writer was killed.
void FileStore::read_new_records() {
  const std::string bytes = read_from(file_, end_, path_);
  std::size_t offset = 0;
  while (bytes.size() - offset >= kHeadBytes) {
    const std::uint32_t key_bytes = get_u32(bytes, offset);
    const std::uint32_t value_bytes = get_u32(bytes, offset + 4);
    require(key_bytes <= kMaxTextBytes && value_bytes <= kMaxTextBytes, Errc::kSystem,
            "store: file {} is damaged at byte {}; give the path of a new one", path_,
            end_ + static_cast<std::int64_t>(offset));
    const std::size_t record_bytes = kHeadBytes + key_bytes + value_bytes;
    if (bytes.size() - offset < record_bytes) break;
    values_[bytes.substr(offset + kHeadBytes, key_bytes)] =
        bytes.substr(offset + kHeadBytes + key_bytes, value_bytes);
    offset += record_bytes;
  }
  end_ += static_cast<std::int64_t>(offset);
}

void FileStore::write_at_end(const std::string& bytes) {
  if (ftruncate(file_.get(), end_) != 0) fail_errno("ftruncate", path_);
  std::size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t size = pwrite(file_.get(), bytes.data() + written, bytes.size() - written,
                                end_ + static_cast<std::int64_t>(written));
    if (size < 0 && errno != EINTR) fail_errno("write", path_);
    if (size > 0) written += static_cast<std::size_t>(size);
  }
  end_ += static_cast<std::int64_t>(bytes.size());
}

void FileStore::set_within(const std::string& key, const std::string& value, std::int64_t ms) {
  const std::lock_guard guard(mutex_);
  require(key.size() <= kMaxTextBytes && value.size() <= kMaxTextBytes, Errc::kInvalidArgument,
          "store: key \"{}\" and its value have {} bytes, must have at most {} each",
          key.substr(0, 64), key.size() + value.size(), kMaxTextBytes);
  require(lock(LOCK_EX, Deadline::after_ms(ms)), Errc::kTimeout,
          "store: file {} is locked for {:.1f} s", path_, static_cast<double>(ms) * 1e-3);
  const FileLock held(file_);
  read_new_records();
  std::string record;
  put_u32(record, key.size());
  put_u32(record, value.size());
  write_at_end(record + key + value);
  values_[key] = value;
}

std::optional<std::string> FileStore::get(const std::string& key, const Deadline& deadline) {
  const std::lock_guard guard(mutex_);
  for (;;) {
    // A question that must not wait still has to see what is there: writers hold the lock for
    // microseconds.
    if (lock(LOCK_SH, Deadline::after_ms(std::max(deadline.remaining_ms(), kSliceMs)))) {
      const FileLock held(file_);
      read_new_records();
    }
    const auto found = values_.find(key);
    if (found != values_.end()) return found->second;
    if (deadline.expired()) return std::nullopt;
    poll(nullptr, 0, std::min(kPollMs, deadline.remaining_ms()));
  }
}

}  // namespace switchyard
