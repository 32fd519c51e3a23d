// SPDX-License-Identifier: Apache-2.0

#include "io/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "core/above_stdio.h"
#include "core/fail.h"

namespace switchyard {
namespace {

// A path that leads nowhere is a mistake of whoever gave it, not of the system.
[[noreturn]] void fail_to_open(const std::string& path) {
  const int error = errno;
  const bool is_mistake = error == ENOENT || error == ENOTDIR || error == EACCES ||
                          error == ELOOP || error == ENAMETOOLONG;
  if (!is_mistake) fail_errno("open", path);
  fail(Errc::kInvalidArgument, "open: {}: {}", path,
       std::error_code(error, std::system_category()).message());
}

class ReadableFile {
 public:
  explicit ReadableFile(const std::string& path) {
    // O_NONBLOCK: opening a pipe without a writer must not block.
    descriptor_ = above_stdio(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (descriptor_ < 0) fail_to_open(path);
    try {
      measure(path);
    } catch (...) {
      close(descriptor_);
      throw;
    }
  }
  ReadableFile(const ReadableFile&) = delete;
  ReadableFile& operator=(const ReadableFile&) = delete;
  ~ReadableFile() { close(descriptor_); }

  int descriptor() const noexcept { return descriptor_; }
  std::size_t num_bytes() const noexcept { return num_bytes_; }

 private:
  void measure(const std::string& path) {
    struct stat info {};
    if (fstat(descriptor_, &info) != 0) fail_errno("fstat", path);
    require(S_ISREG(info.st_mode), Errc::kMalformedFile, "open: {} is not a regular file", path);
    num_bytes_ = static_cast<std::size_t>(info.st_size);
  }

  int descriptor_ = -1;
  std::size_t num_bytes_ = 0;
};

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  const ReadableFile file(path);
  if (file.num_bytes() == 0) return;  // mmap rejects an empty mapping; the span stays empty
  void* data = mmap(nullptr, file.num_bytes(), PROT_READ, MAP_SHARED, file.descriptor(), 0);
  if (data == MAP_FAILED) fail_errno("mmap", path);
  bytes_ = {static_cast<const std::byte*>(data), file.num_bytes()};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

std::string read_text_file(const std::string& path, std::size_t max_bytes) {
  const ReadableFile file(path);
  require(file.num_bytes() <= max_bytes, Errc::kMalformedFile,
          "read: {} has {} bytes, must have at most {}", path, file.num_bytes(), max_bytes);
  std::string text(file.num_bytes(), '\0');
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t got = read(file.descriptor(), text.data() + done, text.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno("read", path);
    if (got == 0) break;  // the file shrank after fstat
    done += static_cast<std::size_t>(got);
  }
  text.resize(done);
  return text;
}

void refuse_lfs_pointer(std::string_view start, const std::string& file) {
  require(!start.starts_with("version https://git-lfs"), Errc::kMalformedFile,
          "read: {} is a Git LFS pointer, must be the file that it stands for; run git lfs pull",
          file);
}

}  // namespace switchyard
