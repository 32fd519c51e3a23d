// SPDX-License-Identifier: Apache-2.0
//
// child_process.h: starts a process that dies with its parent, and forwards its output by lines.
#pragma once

#include <sys/types.h>

#include <signal.h>
#include <string>
#include <vector>

#include "transport/socket.h"

namespace switchyard {

struct ChildSpec {
  std::vector<std::string> command;
  std::vector<std::string> environment;  ///< all of it, as "NAME=value"
  bool has_input = false;                ///< keeps stdin; else stdin is empty
  int output_fd = -1;                    ///< becomes stdout
  int error_fd = -1;                     ///< becomes stderr
  int kept_fd = -1;                      ///< stays open under its number
  sigset_t signal_mask{};
  std::vector<int> cores{};  ///< logical processors to run on; empty: those of the caller
};

struct ChildProcess {
  pid_t pid = -1;
  std::string program;
  Fd handle;  ///< pidfd: readable once the process has ended; none on old kernels
  Fd report;  ///< readable once the program has started or cannot be; none once that is known
};

/// Does not wait for the program to start: whoever stops the child before that stops nobody else.
/// The child gets SIGKILL when the calling thread ends. Errors: kSystem.
ChildProcess start_process(const ChildSpec& spec);

/// Takes what `report` has; nothing if the child is not that far. Errors: kInvalidArgument when the
/// program cannot be started; the child has ended then, or does at once.
void check_started(ChildProcess& child);

/// Copies whole lines, each with its prefix in a single write, so that lines from different sources
/// never interleave.
class LineForwarder {
 public:
  LineForwarder(Fd source, int target_fd, std::string prefix);

  const Fd& source() const { return source_; }  ///< none after end of file
  /// Reads what is available and forwards complete lines.
  void forward();
  /// Writes an incomplete last line and closes the source.
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
/// The same file under a descriptor number above stdio, closed on exec.
Fd above_stdio(Fd fd);

}  // namespace switchyard
