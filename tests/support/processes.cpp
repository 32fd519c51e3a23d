// SPDX-License-Identifier: Apache-2.0

#include "support/processes.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <signal.h>

#include <gtest/gtest.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/settings.h"
#include "engine/registry.h"
#include "engine/remote_exit.h"
#include "transport/socket.h"

namespace switchyard::test {

struct RankProcesses::Child {
  pid_t pid = -1;  // -1: never started, or already reaped
  Fd output;
  Fd report;
  RankOutcome outcome;
  std::string report_bytes;
};

namespace {

constexpr int kTestFailed = 1;
constexpr int kThrew = 2;
constexpr int kPollMs = 5;

struct Pipe {
  Fd read_end;
  Fd write_end;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) std::abort();
  return {Fd(ends[0]), Fd(ends[1])};
}

// The first byte is the error code, the rest is the message.
void write_report(const Fd& report, const Error& error) {
  std::string bytes(1, static_cast<char>(error.code()));
  bytes += error.what();
  if (write(report.get(), bytes.data(), bytes.size()) < 0) std::perror("report");
}

int run_body(const JoinRequest& request, const std::function<void(const Group&)>& body,
             const ProcessOptions& options, const Fd& report) {
  try {
    if (options.host_of) {
      set_setting("SWITCHYARD_HOST_ID", "h" + std::to_string(options.host_of(request.ranks.rank)));
    }
    const Group group(join_engine(options.engine, request));
    set_log_rank(group.rank());
    body(group);
  } catch (const Error& error) {
    write_report(report, error);
    return kThrew;
  } catch (const std::exception& error) {
    write_report(report, Error(Errc::kInternal, error.what()));
    return kThrew;
  }
  return ::testing::Test::HasFailure() ? kTestFailed : 0;
}

[[noreturn]] void be_rank(const JoinRequest& request, const std::function<void(const Group&)>& body,
                          const ProcessOptions& options, const Pipe& output, const Pipe& report,
                          pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kThrew);
  dup2(output.write_end.get(), STDOUT_FILENO);
  dup2(output.write_end.get(), STDERR_FILENO);
  const int code = run_body(request, body, options, report.write_end);
  std::fflush(nullptr);
  remote_exit::run();
  _exit(code);  // skips the other exit handlers, which belong to the parent's test
}

// Reads everything that is available now.
void drain(const Fd& source, std::string& bytes) {
  std::array<char, 4096> chunk;
  pollfd entry{source.get(), POLLIN, 0};
  while (poll(&entry, 1, 0) > 0) {
    const ssize_t size = read(source.get(), chunk.data(), chunk.size());
    if (size <= 0) return;
    bytes.append(chunk.data(), static_cast<std::size_t>(size));
  }
}

}  // namespace

RankProcesses::RankProcesses(int num_ranks, const std::function<void(const Group&)>& body,
                             const ProcessOptions& options)
    : end_ns_(now_ns() + options.deadline_ms * 1'000'000) {
  static int num_runs = 0;
  JoinRequest request;
  request.ranks.size = num_ranks;
  request.ranks.source = "test";
  request.timeout_ms = options.timeout_ms;
  request.store =
      "unix:@switchyard-test-" + std::to_string(getpid()) + "-" + std::to_string(num_runs++);
  std::fflush(nullptr);
  const pid_t parent = getpid();
  children_.resize(static_cast<std::size_t>(num_ranks));
  for (int rank = 0; rank < num_ranks - options.num_missing; ++rank) {
    Pipe output = make_pipe();
    Pipe report = make_pipe();
    request.ranks.rank = rank;
    Child& child = children_[static_cast<std::size_t>(rank)];
    child.pid = fork();
    if (child.pid == 0) be_rank(request, body, options, output, report, parent);
    child.output = std::move(output.read_end);
    child.report = std::move(report.read_end);
  }
}

RankProcesses::~RankProcesses() {
  for (Child& child : children_) {
    if (child.pid < 0) continue;
    kill(child.pid, SIGKILL);
    waitpid(child.pid, nullptr, 0);
  }
}

pid_t RankProcesses::pid(int rank) const { return children_[static_cast<std::size_t>(rank)].pid; }

void RankProcesses::send_signal(int rank, int signal) const { kill(pid(rank), signal); }

RankOutcome RankProcesses::wait_for(int rank) {
  Child& child = children_[static_cast<std::size_t>(rank)];
  while (child.pid >= 0) {
    drain(child.output, child.outcome.output);
    drain(child.report, child.report_bytes);
    int status = 0;
    if (waitpid(child.pid, &status, WNOHANG) == child.pid) {
      child.pid = -1;
      child.outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
      child.outcome.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    } else if (now_ns() > end_ns_) {
      kill(child.pid, SIGKILL);
    } else {
      pollfd entry{child.output.get(), POLLIN, 0};
      poll(&entry, 1, kPollMs);
    }
  }
  if (child.output.has_value()) drain(child.output, child.outcome.output);
  if (child.report.has_value()) drain(child.report, child.report_bytes);
  if (!child.report_bytes.empty()) {
    child.outcome.error.emplace(static_cast<Errc>(child.report_bytes[0]),
                                child.report_bytes.substr(1));
  }
  return child.outcome;
}

std::vector<RankOutcome> RankProcesses::wait() {
  std::vector<RankOutcome> outcomes;
  for (std::size_t rank = 0; rank < children_.size(); ++rank) {
    outcomes.push_back(wait_for(static_cast<int>(rank)));
  }
  return outcomes;
}

void run_processes(int num_ranks, const std::function<void(const Group&)>& body,
                   const ProcessOptions& options) {
  const std::vector<RankOutcome> outcomes = RankProcesses(num_ranks, body, options).wait();
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    const RankOutcome& outcome = outcomes[rank];
    EXPECT_EQ(outcome.exit_code, 0)
        << "rank " << rank << " of " << num_ranks << ", signal " << outcome.signal << ": "
        << (outcome.error ? outcome.error->what() : "no exception") << "\n"
        << outcome.output;
  }
}

void wait_until(const std::atomic<int>& value, int wanted) {
  const Deadline deadline = Deadline::after_ms(20'000);
  while (value < wanted && !deadline.expired()) usleep(1000);
  ASSERT_GE(value, wanted);
}

}  // namespace switchyard::test
