// SPDX-License-Identifier: Apache-2.0

#include "support/command.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <fstream>
#include <stdexcept>

#include "core/clock.h"

namespace switchyard::test {

Command::Command(const std::vector<std::string>& arguments) {
  std::array<int, 2> output{};
  std::array<int, 2> error{};
  if (pipe2(output.data(), O_CLOEXEC) != 0 || pipe2(error.data(), O_CLOEXEC) != 0) {
    throw std::runtime_error("command: pipe2 failed");
  }
  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    setpgid(0, 0);
    dup2(output[1], STDOUT_FILENO);
    dup2(error[1], STDERR_FILENO);
    execvp(argv[0], argv.data());
    _exit(127);
  }
  close(output[1]);
  close(error[1]);
  output_fd_ = output[0];
  error_fd_ = error[0];
}

Command::~Command() {
  if (pid_ > 0) {
    kill(-pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  close(output_fd_);
  close(error_fd_);
}

std::vector<pid_t> Command::children() const {
  std::ifstream file("/proc/" + std::to_string(pid_) + "/task/" + std::to_string(pid_) +
                     "/children");
  std::vector<pid_t> pids;
  for (pid_t pid = 0; file >> pid;) pids.push_back(pid);
  return pids;
}

CommandResult Command::wait(double seconds) {
  CommandResult result;
  const std::int64_t start = now_ns();
  const auto deadline = Deadline::after_ms(static_cast<std::int64_t>(seconds * 1000));
  std::array<pollfd, 2> fds{{{output_fd_, POLLIN, 0}, {error_fd_, POLLIN, 0}}};
  int num_open = 2;
  while (num_open > 0) {
    if (poll(fds.data(), fds.size(), deadline.remaining_ms()) == 0) {
      kill(-pid_, SIGKILL);
      break;
    }
    for (std::size_t i = 0; i < fds.size(); ++i) {
      if (fds[i].revents == 0) continue;
      std::array<char, 4096> bytes{};
      const ssize_t got = read(fds[i].fd, bytes.data(), bytes.size());
      if (got > 0) {
        (i == 0 ? result.output : result.error).append(bytes.data(), static_cast<std::size_t>(got));
      } else {
        fds[i].fd = -1;
        --num_open;
      }
    }
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  result.seconds = static_cast<double>(now_ns() - start) * 1e-9;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

CommandResult Command::wait_for_end(double seconds) {
  CommandResult result;
  const std::int64_t start = now_ns();
  const auto deadline = Deadline::after_ms(static_cast<std::int64_t>(seconds * 1000));
  int status = 0;
  while (waitpid(pid_, &status, WNOHANG) == 0) {
    poll(nullptr, 0, 5);
    if (deadline.expired()) kill(-pid_, SIGKILL);
  }
  pid_ = -1;
  result.seconds = static_cast<double>(now_ns() - start) * 1e-9;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

CommandResult run_command(const std::vector<std::string>& arguments, double seconds) {
  return Command(arguments).wait(seconds);
}

}  // namespace switchyard::test
