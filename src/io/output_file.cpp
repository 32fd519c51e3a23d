// SPDX-License-Identifier: Apache-2.0

#include "io/output_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <signal.h>
#include <system_error>

#include "core/above_stdio.h"
#include "core/fail.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxLinks = 40;  // as Linux follows

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// The folder of `path` with every link resolved; empty when there is none.
std::string real_folder_of(const fs::path& path) {
  std::error_code error;
  return fs::canonical(folder_of(path), error).string();
}

// Links of /proc do not name a file, they are one: /proc/self/fd/1 reads as /path/log.
bool is_in_proc(const fs::path& path) {
  const std::string folder = real_folder_of(path);
  return folder == "/proc" || folder.starts_with("/proc/");
}

// The file that `path` names, also when a link leads to nothing yet.
std::string follow_links(const std::string& path) {
  fs::path target = path;
  std::error_code error;
  for (int i = 0; i < kMaxLinks && !is_in_proc(target) && fs::is_symlink(target, error); ++i) {
    target = folder_of(target) / fs::read_symlink(target, error);
  }
  return target.string();
}

// The open descriptor of this process that `target`, without links, names; -1 for anything else.
int own_descriptor(const fs::path& target) {
  std::error_code error;
  const fs::path folder = real_folder_of(target);
  const std::string process = fs::canonical("/proc/self", error).string() + "/";
  if (folder.filename() != "fd" || !folder.string().starts_with(process)) return -1;
  const std::string name = target.filename().string();
  int descriptor = -1;
  const auto [end, result] = std::from_chars(name.data(), name.data() + name.size(), descriptor);
  return result == std::errc() && end == name.data() + name.size() ? descriptor : -1;
}

bool is_writable(int descriptor) {
  const int flags = fcntl(descriptor, F_GETFL);
  return flags >= 0 && (flags & O_ACCMODE) != O_RDONLY;
}

// True when a file may not be replaced, but perhaps be written: it is a mount point, or what may
// not be written is its folder.
bool is_held_in_place(int error) {
  return error == EBUSY || error == EACCES || error == EPERM || error == EXDEV || error == EROFS;
}

std::string temporary_name(const std::string& path) {
  static std::atomic<unsigned> counter{0};
  return fmt::format("{}.{}.{}.tmp", path, getpid(), counter.fetch_add(1));
}

// Why no file can be made at `path`; empty when it can.
std::string obstacle(const std::string& path) {
  if (path.empty()) return "empty, must be a file";
  if (path == "-") return "-, must be a file; /dev/stdout is one";
  const std::string target = follow_links(path);
  if (const int descriptor = own_descriptor(target); descriptor >= 0) {
    if (is_writable(descriptor)) return {};
    return fmt::format("{}, but descriptor {} is not open for writing", path, descriptor);
  }
  struct stat info {};
  if (stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) return fmt::format("{}, which is a folder, must be a file", path);
    if (!S_ISREG(info.st_mode) || access(path.c_str(), W_OK) == 0) return {};
  }
  const std::string folder = folder_of(target).string();
  if (stat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return fmt::format("{}, but there is no folder {}", path, folder);
  }
  if (access(folder.c_str(), W_OK) != 0) {
    return fmt::format("{}, but the folder {} may not be written", path, folder);
  }
  return {};
}

// While it lives, no signal ends the program.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

}  // namespace

void check_output_path(const char* option, const std::string& path) {
  const std::string why = obstacle(path);
  require(why.empty(), Errc::kInvalidArgument, "{} is {}", option, why);
}

OutputFile::OutputFile(const std::string& path) {
  check_output_path("output", path);
  const std::string target = follow_links(path);
  const int descriptor = own_descriptor(target);
  struct stat info {};
  const bool is_there = stat(path.c_str(), &info) == 0;
  is_device_ = descriptor >= 0 || is_in_proc(target) || (is_there && !S_ISREG(info.st_mode));
  path_ = is_device_ ? path : target;
  if (descriptor >= 0) {
    share(descriptor);
  } else if (is_device_) {
    open_device();
  } else {
    open_unnamed();
    if (is_there) fchmod(descriptor_, info.st_mode & 0777);  // not every file system has modes
  }
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

// The copy shares offset and O_APPEND with whoever opened the file, and may be a socket.
void OutputFile::share(int descriptor) {
  if (descriptor == STDOUT_FILENO) std::fflush(stdout);  // what was printed before comes first
  descriptor_ = fcntl(descriptor, F_DUPFD_CLOEXEC, 3);
  if (descriptor_ < 0) fail_errno("dup", path_);
}

// O_NONBLOCK: a pipe that nobody reads must not block here.
void OutputFile::open_device() {
  descriptor_ = above_stdio(open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK));
  if (descriptor_ < 0) fail_errno("open", path_);
  fcntl(descriptor_, F_SETFL, O_APPEND);
}

void OutputFile::open_unnamed() {
  const std::string folder = folder_of(path_).string();
  if (access("/proc/self/fd", F_OK) == 0) {  // which names it at the end
    descriptor_ = above_stdio(open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0666));
  }
  if (descriptor_ >= 0) return;
  // This file system has only files with names.
  const std::string name = temporary_name(path_);
  descriptor_ = above_stdio(open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (descriptor_ >= 0) {
    temporary_ = name;
    return;
  }
  if (!is_held_in_place(errno)) fail_errno("open", name);
  open_elsewhere();
}

// Collects the text for a file in a folder that may not be written.
void OutputFile::open_elsewhere() {
  std::error_code error;
  std::string name = (fs::temp_directory_path(error) / "switchyard-XXXXXX").string();
  descriptor_ = above_stdio(mkostemp(name.data(), O_CLOEXEC));
  if (descriptor_ < 0) fail_errno("open", name);
  unlink(name.c_str());
}

void OutputFile::write(const void* data, std::size_t num_bytes) {
  const auto* next = static_cast<const char*>(data);
  while (num_bytes > 0) {
    const ssize_t done = ::write(descriptor_, next, num_bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0 && errno == EAGAIN) {  // a shared descriptor may be non-blocking
      pollfd entry{descriptor_, POLLOUT, 0};
      poll(&entry, 1, -1);
      continue;
    }
    if (done < 0) fail_errno("write", path_);
    next += done;
    num_bytes -= static_cast<std::size_t>(done);
  }
}

// A name that is taken can only be replaced by rename, which wants a name to come from. False, with
// errno, when the file system refuses.
bool OutputFile::take_place() {
  if (temporary_.empty()) {
    const std::string own = fmt::format("/proc/self/fd/{}", descriptor_);
    const auto link_to = [&](const std::string& name) {
      return linkat(AT_FDCWD, own.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
    };
    if (link_to(path_)) return true;
    if (errno != EEXIST) return false;
    const std::string name = temporary_name(path_);
    if (!link_to(name)) return false;
    temporary_ = name;
  }
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) return false;
  temporary_.clear();
  return true;
}

void OutputFile::write_through() {
  const int target = above_stdio(open(path_.c_str(), O_WRONLY | O_TRUNC | O_CLOEXEC));
  if (target < 0) fail_errno("open", path_);
  off_t offset = 0;
  ssize_t done = 1;
  while (done > 0) done = sendfile(target, descriptor_, &offset, std::size_t{1} << 30);
  const int error = done < 0 ? errno : 0;
  const bool is_closed = close(target) == 0;
  if (error != 0) errno = error;
  if (error != 0 || !is_closed) fail_errno("write", path_);
}

void OutputFile::commit() {
  const BlockedSignals blocked;  // so that a temporary name never stays
  if (close(dup(descriptor_)) != 0) fail_errno("close", path_);  // late write errors surface here
  if (is_device_ || take_place()) return;
  const int error = errno;
  if (is_held_in_place(error) && access(path_.c_str(), W_OK) == 0) return write_through();
  errno = error;
  fail_errno("rename", path_);
}

void write_file(const std::string& path, std::string_view text) {
  OutputFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace switchyard
