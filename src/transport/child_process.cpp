// SPDX-License-Identifier: Apache-2.0

#include "transport/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <system_error>

#include "core/fail.h"

namespace switchyard {
namespace {

constexpr std::size_t kMaxLine = 65536;  // longer lines are split

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

cpu_set_t set_of(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) {
    if (core < CPU_SETSIZE) CPU_SET(static_cast<std::size_t>(core), &set);
  }
  return set;
}

// Between fork and exec only async-signal-safe calls are allowed: nothing here allocates.
[[noreturn]] void become(const ChildSpec& spec, char* const* arguments, char* const* environment,
                         const cpu_set_t& cores, int null_fd, int report_fd, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // the parent died before prctl
  // A sandbox may refuse: then the rank runs where its parent may.
  if (!spec.cores.empty()) sched_setaffinity(0, sizeof(cores), &cores);
  const bool is_set = (spec.has_input || dup2(null_fd, STDIN_FILENO) >= 0) &&
                      dup2(spec.output_fd, STDOUT_FILENO) >= 0 &&
                      dup2(spec.error_fd, STDERR_FILENO) >= 0 &&
                      (spec.kept_fd < 0 || fcntl(spec.kept_fd, F_SETFD, 0) == 0) &&
                      sigprocmask(SIG_SETMASK, &spec.signal_mask, nullptr) == 0;
  if (is_set) execvpe(arguments[0], arguments, environment);
  const int error = errno;
  [[maybe_unused]] const ssize_t written = write(report_fd, &error, sizeof(error));
  _exit(127);
}

// The description of a pipe or terminal is shared with other programs, whose writes must still
// block. Neither may the one who polls block, even where another program fills the pipe meanwhile.
Fd open_again(int fd) {
  struct stat info {};
  const bool may_block = fstat(fd, &info) == 0 && (S_ISFIFO(info.st_mode) || isatty(fd) == 1);
  if (!may_block) return Fd();
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return Fd(open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

}  // namespace

std::pair<Fd, Fd> make_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) fail_errno("pipe", "output of a rank");
  Fd read_end(ends[0]);
  Fd write_end(ends[1]);
  if (!read_end.has_value() || !write_end.has_value()) fail_errno("pipe", "output of a rank");
  return {std::move(read_end), std::move(write_end)};
}

bool is_writable(int fd) {
  pollfd entry{fd, POLLOUT, 0};
  return poll(&entry, 1, 0) > 0;
}

ChildProcess start_process(const ChildSpec& spec) {
  require(!spec.command.empty(), Errc::kInvalidArgument, "launch: the command is empty");
  const std::vector<char*> arguments = pointers_to(spec.command);
  const std::vector<char*> environment = pointers_to(spec.environment);
  const cpu_set_t cores = set_of(spec.cores);
  const Fd null(open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null.has_value()) fail_errno("open", "/dev/null");
  auto [report, report_end] = make_pipe();
  const pid_t parent = getpid();
  ChildProcess child;
  child.program = spec.command[0];
  child.pid = fork();
  if (child.pid < 0) fail_errno("fork", spec.command[0]);
  if (child.pid == 0) {
    become(spec, arguments.data(), environment.data(), cores, null.get(), report_end.get(), parent);
  }
  fcntl(report.get(), F_SETFL, O_NONBLOCK);
  child.report = std::move(report);
#ifdef SYS_pidfd_open
  child.handle = Fd(static_cast<int>(syscall(SYS_pidfd_open, child.pid, 0)));
#endif
  return child;
}

// The child writes its errno, or its exec closes the pipe.
void check_started(ChildProcess& child) {
  if (!child.report.has_value()) return;
  int error = 0;
  const ssize_t size = read(child.report.get(), &error, sizeof(error));
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  child.report.reset();
  if (size != static_cast<ssize_t>(sizeof(error))) return;
  fail(Errc::kInvalidArgument, "launch: {}: {}", child.program,
       std::error_code(error, std::system_category()).message());
}

LineQueue::LineQueue(int target_fd) : target_fd_(target_fd), own_(open_again(target_fd)) {}

int LineQueue::fd() const { return own_.has_value() ? own_.get() : target_fd_; }

void LineQueue::push(std::string line) { lines_.push_back(std::move(line)); }

// A pipe that accepts anything accepts PIPE_BUF bytes.
void LineQueue::write_some() {
  while (!lines_.empty() && is_writable(fd())) {
    const std::string_view rest = std::string_view(lines_.front()).substr(num_written_);
    const ssize_t size = write(fd(), rest.data(), std::min<std::size_t>(rest.size(), PIPE_BUF));
    if (size < 0 && errno == EAGAIN) return;
    if (size < 0 && errno == EINTR) continue;
    num_written_ = size < 0 ? lines_.front().size() : num_written_ + static_cast<std::size_t>(size);
    if (num_written_ < lines_.front().size()) continue;
    lines_.pop_front();
    num_written_ = 0;
  }
}

LineForwarder::LineForwarder(Fd source, LineQueue& target, std::string prefix)
    : source_(std::move(source)), target_(target), prefix_(std::move(prefix)) {
  fcntl(source_.get(), F_SETFL, O_NONBLOCK);
}

void LineForwarder::forward() {
  std::array<char, 65536> bytes;
  const ssize_t size = read(source_.get(), bytes.data(), bytes.size());
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (size <= 0) return finish();
  pending_.append(bytes.data(), static_cast<std::size_t>(size));
  std::size_t start = 0;
  for (std::size_t end = pending_.find('\n'); end != pending_.npos;
       end = pending_.find('\n', start)) {
    write_line(pending_.data() + start, end - start);
    start = end + 1;
  }
  pending_.erase(0, start);
  if (pending_.size() < kMaxLine) return;
  write_line(pending_.data(), pending_.size());
  pending_.clear();
}

void LineForwarder::finish() {
  if (!pending_.empty()) write_line(pending_.data(), pending_.size());
  pending_.clear();
  source_.reset();
}

void LineForwarder::write_line(const char* data, std::size_t size) {
  std::string line = prefix_;
  line.append(data, size);
  line += '\n';
  target_.push(std::move(line));
}

}  // namespace switchyard
