// SPDX-License-Identifier: Apache-2.0
//
// child_process.h: a process that dies with its parent, and its output, line by line.
#pragma once

#include <sys/types.h>

#include <signal.h>
#include <string>
#include <vector>

#include "transport/socket.h"

namespace switchyard {

struct ChildSpec {
  std::vector<std::string> command;
  std::vector<std::string> environment;  ///< "NAME=value", complete
  bool has_input = false;                ///< keeps stdin; else it is empty
  int output_fd = -1;                    ///< becomes stdout
  int error_fd = -1;                     ///< becomes stderr
  int kept_fd = -1;                      ///< stays open, at its number
  sigset_t signal_mask{};
};

struct ChildProcess {
  pid_t pid = -1;
  Fd handle;  ///< pidfd: readable once the process has ended; none on old systems
};

/// The child gets SIGKILL when the calling thread ends. Errors: kInvalidArgument when the program
/// cannot be started, kSystem.
ChildProcess start_process(const ChildSpec& spec);

/// Copies whole lines, each with a prefix in one write, so that lines of several sources never mix.
class LineForwarder {
 public:
  LineForwarder(Fd source, int target_fd, std::string prefix);

  const Fd& source() const { return source_; }  ///< none after the end
  /// Reads what is there.
  void forward();
  /// Writes what came without a line end.
  void finish();

 private:
  void write_line(const char* data, std::size_t size);

  Fd source_;
  int target_fd_;
  std::string prefix_;
  std::string pending_;
};

/// A pipe whose ends are closed on exec and numbered above stdio.
std::pair<Fd, Fd> make_pipe();
/// The same file under a number above stdio, closed on exec.
Fd above_stdio(Fd fd);

}  // namespace switchyard
