// SPDX-License-Identifier: Apache-2.0

#include "io/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <signal.h>
#include <system_error>

#include "core/fail.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxLinks = 40;  // as Linux follows

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

// The file that `path` names, also when a link leads to nothing yet.
std::string follow_links(const std::string& path) {
  fs::path target = path;
  std::error_code error;
  for (int i = 0; i < kMaxLinks && fs::is_symlink(target, error); ++i) {
    target = folder_of(target) / fs::read_symlink(target, error);
  }
  return target.string();
}

std::string temporary_name(const std::string& path) {
  static std::atomic<unsigned> counter{0};
  return fmt::format("{}.{}.{}.tmp", path, getpid(), counter.fetch_add(1));
}

// Why no file can be made at `path`; empty when it can.
std::string obstacle(const std::string& path) {
  if (path.empty()) return "empty, must be a file";
  if (path == "-") return "-, must be a file; /dev/stdout is one";
  struct stat info {};
  if (stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) return fmt::format("{}, which is a folder, must be a file", path);
    if (!S_ISREG(info.st_mode)) return {};
  }
  const std::string folder = folder_of(follow_links(path)).string();
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
  struct stat info {};
  is_device_ = stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode);
  path_ = is_device_ ? path : follow_links(path);
  is_device_ ? open_device() : open_unnamed();
}

OutputFile::~OutputFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (!temporary_.empty()) unlink(temporary_.c_str());
}

// O_NONBLOCK: a pipe that nobody reads must not block here.
void OutputFile::open_device() {
  descriptor_ = open(path_.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor_ < 0) fail_errno("open", path_);
  fcntl(descriptor_, F_SETFL, 0);
}

void OutputFile::open_unnamed() {
  const std::string folder = folder_of(path_).string();
  descriptor_ = open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666);
  if (descriptor_ >= 0) return;
  // This file system has only files with names.
  const std::string name = temporary_name(path_);
  descriptor_ = open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor_ < 0) fail_errno("open", name);
  temporary_ = name;
}

void OutputFile::write(const void* data, std::size_t num_bytes) {
  const auto* next = static_cast<const char*>(data);
  while (num_bytes > 0) {
    const ssize_t done = ::write(descriptor_, next, num_bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) fail_errno("write", path_);
    next += done;
    num_bytes -= static_cast<std::size_t>(done);
  }
}

// A name that is taken can only be replaced by rename, which wants a name to come from.
void OutputFile::give_name() {
  const std::string own = fmt::format("/proc/self/fd/{}", descriptor_);
  const auto link_to = [&](const std::string& name) {
    return linkat(AT_FDCWD, own.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
  };
  if (link_to(path_)) return;
  if (errno != EEXIST) fail_errno("link", path_);
  const std::string name = temporary_name(path_);
  if (!link_to(name)) fail_errno("link", name);
  temporary_ = name;
}

void OutputFile::commit() {
  const BlockedSignals blocked;  // so that a temporary name never stays
  if (!is_device_ && temporary_.empty()) give_name();
  const int descriptor = descriptor_;
  descriptor_ = -1;
  if (close(descriptor) != 0) fail_errno("close", path_);  // late write errors surface here
  if (temporary_.empty()) return;
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail_errno("rename", path_);
  temporary_.clear();
}

void write_file(const std::string& path, std::string_view text) {
  OutputFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace switchyard
