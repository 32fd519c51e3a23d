// SPDX-License-Identifier: Apache-2.0
//
// launcher.cpp: one thread polls signals (signalfd), exits of ranks (pidfd) and their output. The
// first failure, or a stop signal, starts a shutdown in three steps with a grace time between them:
// the control block aborts the group, SIGTERM asks the ranks to end, SIGKILL ends them.

#include "transport/launcher.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <list>
#include <memory>
#include <signal.h>

#include "switchyard/error.h"

#include "core/clock.h"
#include "core/fail.h"
#include "core/log.h"
#include "core/settings.h"
#include "core/text.h"
#include "core/topology.h"
#include "transport/child_process.h"
#include "transport/control_block.h"
#include "transport/env.h"
#include "transport/secret.h"
#include "transport/shared_memory.h"
#include "transport/store_server.h"

extern char** environ;  // NOLINT: POSIX wants this declaration

namespace switchyard {
namespace {

constexpr int kLostCodeExitCode = 3;
constexpr int kNoHandlePollMs = 50;             // where the kernel has no pidfd
constexpr std::int64_t kDrainNs = 500'000'000;  // to drain output after the last rank ended

struct Rank {
  ChildProcess process;
  bool is_running = false;
  std::list<LineForwarder> streams;
};

bool is_rank_variable(const char* entry) {
  for (const char* name : rank_variables()) {
    const std::size_t length = std::strlen(name);
    if (std::strncmp(entry, name, length) == 0 && entry[length] == '=') return true;
  }
  return false;
}

// Blocks the signals that stop the launcher and delivers them through a descriptor; the destructor
// restores the mask. SIGPIPE is blocked too: the job goes on when nobody reads its output any more.
class StopSignals {
 public:
  StopSignals() {
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&set, signal);
    pthread_sigmask(SIG_BLOCK, &set, &before_);
    fd_ = Fd(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
    if (!fd_.has_value()) {
      const int error = errno;
      pthread_sigmask(SIG_SETMASK, &before_, nullptr);
      errno = error;
      fail_errno("signalfd", "launch");
    }
    had_pipe_ = is_pipe_pending();
    const sigset_t pipe = pipe_set();
    pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
  }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  ~StopSignals() {
    const sigset_t pipe = pipe_set();
    const timespec at_once{};
    if (!had_pipe_ && is_pipe_pending()) sigtimedwait(&pipe, nullptr, &at_once);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

  const Fd& fd() const { return fd_; }
  const sigset_t& mask_before() const { return before_; }

 private:
  static sigset_t pipe_set() {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    return set;
  }
  static bool is_pipe_pending() {
    sigset_t pending;
    sigemptyset(&pending);
    sigpending(&pending);
    return sigismember(&pending, SIGPIPE) == 1;
  }

  sigset_t before_{};
  bool had_pipe_ = false;  // blocked and pending before: that SIGPIPE is the caller's
  Fd fd_;
};

std::vector<NumaNode> nodes_to_bind_to() {
  const SettingValue value = setting("SWITCHYARD_BIND");
  const std::string_view binding = value.text;
  require(binding == "numa" || binding == "none", Errc::kInvalidArgument,
          "setting SWITCHYARD_BIND is \"{}\", must be numa or none", binding);
  return binding == "numa" ? numa_nodes() : std::vector<NumaNode>{};
}

class Launcher {
 public:
  explicit Launcher(const LaunchOptions& options);
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;
  ~Launcher();

  LaunchResult run();

 private:
  enum class Step { kRunning, kTold, kAsked, kKilled };

  std::vector<std::string> environment_of(int rank) const;
  void start_rank(int rank);
  std::vector<int> cores_of(int rank) const;
  bool turn();
  int poll_timeout_ms() const;
  void reap(int rank);
  void record_failure(const LaunchResult& failure);
  void read_signal();
  void begin_end();
  void advance_end();
  void send_to_all(int signal);
  std::vector<std::int32_t> running_ranks() const;
  bool is_any_running() const;
  bool is_any_stream_open() const;

  LaunchOptions options_;
  StopSignals signals_;
  LineQueue lines_;
  bool has_signal_ = false;
  Fd control_fd_;
  Mapping control_memory_;
  ControlBlock control_;
  std::string secret_;
  std::unique_ptr<StoreServer> store_;
  std::vector<Rank> ranks_;
  std::vector<NumaNode> nodes_;  // where ranks are bound; empty: nowhere
  LaunchResult result_;
  Step step_ = Step::kRunning;
  std::int64_t next_step_ns_ = 0;
  std::int64_t drain_end_ns_ = 0;
};

Launcher::Launcher(const LaunchOptions& options) : options_(options), lines_(options.error_fd) {
  require(options.num_ranks >= 1 && options.num_ranks <= kMaxRanks, Errc::kInvalidArgument,
          "launch: {} ranks, must be from 1 to {}", options.num_ranks, kMaxRanks);
  if (options_.command.empty()) options_.command = {"/proc/self/exe"};
  const std::size_t bytes = ControlBlock::size_bytes(options.num_ranks);
  control_fd_ = make_shared_memory("switchyard control", bytes);
  control_memory_ = Mapping(control_fd_, bytes);
  control_ = ControlBlock(control_memory_.data(), options.num_ranks);
  secret_ = make_secret();
  store_ = StoreServer::start(Address::parse("unix:@switchyard-" + make_secret()), secret_);
  require(store_ != nullptr, Errc::kInternal, "launch: the address of the store is taken");
  ranks_.resize(static_cast<std::size_t>(options.num_ranks));
  nodes_ = nodes_to_bind_to();
}

// Ranks are still running here only after an error.
Launcher::~Launcher() {
  send_to_all(SIGKILL);
  for (const Rank& rank : ranks_) {
    if (rank.is_running) waitpid(rank.process.pid, nullptr, 0);
  }
}

std::vector<std::string> Launcher::environment_of(int rank) const {
  std::vector<std::string> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!is_rank_variable(*entry)) entries.emplace_back(*entry);
  }
  const auto add = [&](const std::string& name, const std::string& value) {
    std::erase_if(entries, [&](const std::string& old) {
      return old.compare(0, name.size() + 1, name + "=") == 0;
    });
    entries.push_back(name + "=" + value);
  };
  const std::string size = std::to_string(options_.num_ranks);
  for (const auto& [name, value] : options_.variables) add(name, value);
  add("RANK", std::to_string(rank));
  add("WORLD_SIZE", size);
  add("LOCAL_RANK", std::to_string(rank));
  add("LOCAL_WORLD_SIZE", size);
  add("SWITCHYARD_STORE", store_->address().text());
  add("SWITCHYARD_SECRET", secret_);
  add("SWITCHYARD_CONTROL_FD", std::to_string(control_fd_.get()));
  return entries;
}

std::vector<int> Launcher::cores_of(int rank) const {
  if (nodes_.empty()) return {};
  return nodes_[node_of_rank(rank, options_.num_ranks, nodes_.size())].cores;
}

void Launcher::start_rank(int rank) {
  Rank& target = ranks_[static_cast<std::size_t>(rank)];
  const std::string prefix = fmt::format("[rank {}] ", rank);
  ChildSpec spec;
  spec.command = options_.command;
  spec.environment = environment_of(rank);
  spec.has_input = rank == 0;
  spec.kept_fd = control_fd_.get();
  spec.signal_mask = signals_.mask_before();
  spec.cores = cores_of(rank);
  auto [error, error_end] = make_pipe();
  target.streams.emplace_back(std::move(error), lines_, prefix);
  spec.error_fd = error_end.get();
  Fd output_end;
  if (rank == 0 && !options_.prefix_all) {
    spec.output_fd = options_.output_fd;
  } else {
    auto [output, end] = make_pipe();
    target.streams.emplace_back(std::move(output), lines_, prefix);
    output_end = std::move(end);
    spec.output_fd = output_end.get();
  }
  target.process = start_process(spec);
  target.is_running = true;
}

LaunchResult Launcher::run() {
  for (int rank = 0; rank < options_.num_ranks; ++rank) start_rank(rank);
  while (turn()) {
  }
  for (Rank& rank : ranks_) {
    for (LineForwarder& stream : rank.streams) stream.finish();
  }
  lines_.write_some();
  return result_;
}

// Handles the events of one poll. False when everything has ended. While nobody reads its lines,
// the ranks keep theirs, and only a signal ends the wait.
bool Launcher::turn() {
  const bool is_blocked = !lines_.is_empty();
  std::vector<pollfd> entries{{signals_.fd().get(), POLLIN, 0},
                              {is_blocked ? lines_.fd() : -1, POLLOUT, 0}};
  for (const Rank& rank : ranks_) {
    entries.push_back({rank.is_running ? rank.process.handle.get() : -1, POLLIN, 0});
    entries.push_back({rank.process.report.get(), POLLIN, 0});
    for (const LineForwarder& stream : rank.streams) {
      entries.push_back({is_blocked ? -1 : stream.source().get(), POLLIN, 0});
    }
  }
  if (poll(entries.data(), entries.size(), poll_timeout_ms()) < 0 && errno != EINTR) {
    fail_errno("poll", "launch");
  }
  if (entries[0].revents != 0) read_signal();
  lines_.write_some();
  std::size_t next = 2;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    next += 2;
    for (LineForwarder& stream : ranks_[rank].streams) {
      if (entries[next++].revents == 0 || !lines_.is_empty()) continue;
      stream.forward();
      lines_.write_some();
    }
    if (ranks_[rank].is_running) reap(static_cast<int>(rank));
  }
  advance_end();
  if (is_any_running()) return true;
  const bool waits_for_reader = !has_signal_ && !lines_.is_empty();
  if (drain_end_ns_ == 0 || waits_for_reader) drain_end_ns_ = now_ns() + kDrainNs;
  return (is_any_stream_open() || !lines_.is_empty()) && now_ns() < drain_end_ns_;
}

int Launcher::poll_timeout_ms() const {
  std::int64_t end = drain_end_ns_;
  if (end == 0 && step_ != Step::kRunning && step_ != Step::kKilled) end = next_step_ns_;
  bool has_handles = true;
  for (const Rank& rank : ranks_) {
    has_handles = has_handles && (!rank.is_running || rank.process.handle.has_value());
  }
  const int limit = has_handles ? -1 : kNoHandlePollMs;
  if (end == 0) return limit;
  const auto left = static_cast<int>(std::max<std::int64_t>((end - now_ns()) / 1'000'000 + 1, 0));
  return limit < 0 ? left : std::min(left, limit);
}

void Launcher::reap(int rank) {
  Rank& target = ranks_[static_cast<std::size_t>(rank)];
  int status = 0;
  const pid_t ended = waitpid(target.process.pid, &status, WNOHANG);
  const bool is_running = ended == 0 || (ended < 0 && errno == EINTR);
  target.is_running = is_running;
  check_started(target.process);  // of a rank that has ended, all is there
  if (is_running) return;
  target.process.handle.reset();
  if (ended < 0) {
    record_failure({kLostCodeExitCode, rank, Errc::kSystem,
                    "ended, but this program ignores SIGCHLD and so lost its exit code"});
  } else if (WIFSIGNALED(status)) {
    record_failure({kRankLostExitCode, rank, Errc::kPeerLost,
                    fmt::format("killed by signal {}", WTERMSIG(status))});
  } else if (const int code = WEXITSTATUS(status); code != 0) {
    record_failure({code, rank, std::nullopt, fmt::format("exited with code {}", code)});
  }
}

// Only the first failure counts. If the ranks had already agreed on a cause, that is the reason.
void Launcher::record_failure(const LaunchResult& failure) {
  if (step_ != Step::kRunning) return;
  result_ = failure;
  const AbortLine& cause = control_.abort_line();
  if (!control_.abort(abort_code(Errc::kPeerLost), failure.culprit, failure.reason.c_str())) {
    const std::uint32_t code = cause.code.load(std::memory_order_acquire);
    if (code != 0) {
      result_.culprit = cause.culprit;
      result_.cause = errc_of(code);
      result_.reason =
          fmt::format("{} (rank {} {})", cause.reason, failure.culprit, failure.reason);
    }
  }
  begin_end();
}

// The first signal aborts the group, so that waiting ranks end with an error; later ones are passed
// on at once.
void Launcher::read_signal() {
  signalfd_siginfo info{};
  while (read(signals_.fd().get(), &info, sizeof(info)) == sizeof(info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    has_signal_ = true;
    if (step_ != Step::kRunning) {
      // The terminal signals the whole foreground process group: the ranks already have it.
      if (info.ssi_code != SI_KERNEL) send_to_all(signal);
      continue;
    }
    result_ = {128 + signal, -1, Errc::kAborted, fmt::format("the launcher got signal {}", signal)};
    control_.abort(abort_code(Errc::kAborted), -1, result_.reason.c_str());
    begin_end();
  }
}

void Launcher::begin_end() {
  step_ = Step::kTold;
  next_step_ns_ = now_ns() + std::int64_t{options_.grace_ms} * 1'000'000;
}

void Launcher::advance_end() {
  if (step_ == Step::kRunning || step_ == Step::kKilled || !is_any_running()) return;
  if (now_ns() < next_step_ns_) return;
  const int signal = step_ == Step::kTold ? SIGTERM : SIGKILL;
  send_to_all(signal);
  if (is_writable(STDERR_FILENO)) {
    log(LogLevel::kWarn, "launch", "still running: rank {}; sent {}",
        format_ranges(running_ranks()), signal == SIGTERM ? "SIGTERM" : "SIGKILL");
  }
  step_ = step_ == Step::kTold ? Step::kAsked : Step::kKilled;
  next_step_ns_ = now_ns() + std::int64_t{options_.grace_ms} * 1'000'000;
}

// A pid stays ours until it is reaped, so this cannot hit an unrelated process.
void Launcher::send_to_all(int signal) {
  for (const Rank& rank : ranks_) {
    if (rank.is_running) kill(rank.process.pid, signal);
  }
}

std::vector<std::int32_t> Launcher::running_ranks() const {
  std::vector<std::int32_t> running;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (ranks_[rank].is_running) running.push_back(static_cast<std::int32_t>(rank));
  }
  return running;
}

bool Launcher::is_any_running() const {
  return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.is_running; });
}

bool Launcher::is_any_stream_open() const {
  for (const Rank& rank : ranks_) {
    for (const LineForwarder& stream : rank.streams) {
      if (stream.source().has_value()) return true;
    }
  }
  return false;
}

}  // namespace

LaunchResult launch(const LaunchOptions& options) { return Launcher(options).run(); }

}  // namespace switchyard
