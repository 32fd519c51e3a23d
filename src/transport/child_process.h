// SPDX-License-Identifier: Apache-2.0
//
// child_process.h: starts a process that dies with its parent, and forwards its output by lines.
#pragma once

#include <sys/types.h>

#include <deque>
#include <signal.h>
#include <string>
#include <utility>
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

/// Whole lines on their way to a descriptor. Writes only what it accepts at once: whoever polls can
/// go on while nobody reads. Lines of up to PIPE_BUF bytes are single writes.
class LineQueue {
 public:
  explicit LineQueue(int target_fd);

  bool is_empty() const { return lines_.empty(); }
  int fd() const;  ///< poll it for POLLOUT while the queue is not empty
  void push(std::string line);
  /// Drops what it cannot write because the reader is gone: the job goes on.
  void write_some();

 private:
  int target_fd_;
  Fd own_;  ///< the same pipe or terminal, non-blocking for this process alone; may be none
  std::deque<std::string> lines_;
  std::size_t num_written_ = 0;  ///< of the first line
};

/// Copies lines, each with its prefix, so that those of different sources never interleave.
class LineForwarder {
 public:
  LineForwarder(Fd source, LineQueue& target, std::string prefix);

  const Fd& source() const { return source_; }  ///< none after end of file
  /// Reads what is available and forwards complete lines.
  void forward();
  /// Forwards an incomplete last line and closes the source.
  void finish();

 private:
  void write_line(const char* data, std::size_t size);

  Fd source_;
  LineQueue& target_;
  std::string prefix_;
  std::string pending_;
};

/// A pipe whose ends are closed on exec.
std::pair<Fd, Fd> make_pipe();

/// True when a short write to `fd` does not wait for a reader.
bool is_writable(int fd);

}  // namespace switchyard
