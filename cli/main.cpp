// SPDX-License-Identifier: Apache-2.0
//
// The switchyard command. Exit codes: 0 success; 1 wrong result of run, failed case of check,
// wrong element in bench or nothing measured; 2 usage error or malformed file; 3 environment; 4
// timeout or lost peer.

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>

#include "switchyard/error.h"
#include "switchyard/version.h"

#include "command.h"

namespace {

using switchyard::Errc;

int exit_code_of(Errc code) {
  switch (code) {
    case Errc::kInvalidArgument:
    case Errc::kWorkspaceTooSmall:
    case Errc::kCapacityExceeded:
    case Errc::kMalformedFile:
    case Errc::kNotSupported: return 2;
    case Errc::kNotAvailable:
    case Errc::kOutOfMemory:
    case Errc::kSystem:
    case Errc::kInternal: return 3;
    case Errc::kTimeout:
    case Errc::kPeerLost:
    case Errc::kAborted: return 4;
  }
  return 3;
}

int fail_with(const std::exception& error) {
  const auto* own = dynamic_cast<const switchyard::Error*>(&error);
  if (own == nullptr) {
    std::fprintf(stderr, "switchyard: internal: %s; please report it with: %s\n", error.what(),
                 switchyard::build_summary());
    return 3;
  }
  std::fprintf(stderr, "switchyard: %s: %s\n", name_of(own->code()), own->what());
  return exit_code_of(own->code());
}

// What the program that started this one may have left: a closed descriptor would go to our first
// file or socket, and what is printed into it; SIGPIPE ends a rank as if it were lost; without
// SIGCHLD the exit codes of ranks are lost.
void settle() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) >= 0) continue;
    const int mode = fd == STDIN_FILENO ? O_WRONLY : O_RDONLY;  // reads and writes fail as before
    if (open("/dev/null", mode) < 0) std::exit(3);
  }
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGCHLD, SIG_DFL);
}

int run_command(int argc, char** argv) {
  switchyard::cli::Command command;
  return command.parse(argc, argv) ? command.run(argv) : 0;
}

// Output that did not arrive is an error: the next program would take it for whole.
int flush_output(int exit_code) {
  std::cout.flush();
  const bool is_written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (is_written) return exit_code;
  std::fprintf(stderr, "switchyard: system: stdout: the output could not be written\n");
  return 3;
}

}  // namespace

int main(int argc, char** argv) {
  settle();
  try {
    return flush_output(run_command(argc, argv));
  } catch (const std::exception& error) {
    return fail_with(error);
  }
}
