// SPDX-License-Identifier: Apache-2.0
//
// command.h: runs a program and captures its output.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace switchyard::test {

struct CommandResult {
  int exit_code = -1;  ///< 128 + n when signal n ended it
  std::string output;  ///< stdout
  std::string error;   ///< stderr
  double seconds = 0;
};

/// A started program; the destructor kills its process group.
class Command {
 public:
  explicit Command(const std::vector<std::string>& arguments);
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;
  ~Command();

  pid_t pid() const { return pid_; }
  /// Direct children of the program, oldest first.
  std::vector<pid_t> children() const;
  /// Waits until it ends, at most `seconds`; then kills it, and the exit code is 137.
  CommandResult wait(double seconds = 60);
  /// The same, and reads none of its output.
  CommandResult wait_for_end(double seconds);

 private:
  pid_t pid_ = -1;
  int output_fd_ = -1;
  int error_fd_ = -1;
};

CommandResult run_command(const std::vector<std::string>& arguments, double seconds = 60);

}  // namespace switchyard::test
