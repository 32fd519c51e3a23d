// SPDX-License-Identifier: Apache-2.0

#include "trial_rank.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <signal.h>

#include "switchyard/device.h"
#include "switchyard/error.h"
#include "switchyard/group.h"
#include "switchyard/tensor.h"

#include "conformance/exchange_soak.h"
#include "core/clock.h"
#include "core/fail.h"
#include "core/format.h"
#include "core/random.h"
#include "device/cuda_module.h"
#include "support/shared.h"
#include "transport/stream_socket.h"

namespace switchyard::test {
namespace {

constexpr int kNoGpu = 77;
// From the moment that all ranks are ready to a signal; exchanges on GPUs take longer to make.
constexpr std::int64_t kMaxDelayMs = 600;
constexpr std::int64_t kMaxGpuDelayMs = 3000;
constexpr std::int64_t kMaxReadyMs = 60'000;
constexpr std::int64_t kPairsEach = 30;
constexpr const char* kSecret = "kill-trials";

// A free port now; whoever takes it before rank 0 does makes the trial fail.
int free_port() {
  const Address any = Address::parse("tcp://127.0.0.1:0");
  return bound_address(listen_on(any).at(0), any).port;
}

// Exchanges of all kinds, until a peer ends them; one where all ranks are to come.
void work(const Group& group, const Trial& trial) {
  const Device device =
      trial.device == "cpu" ? Device::cpu() : conformance::device_of(trial.device, group);
  const std::uint64_t num_exchanges = trial.fault == Fault::kLate ? 1 : ~0ull;
  for (std::uint64_t i = 0; i < num_exchanges; ++i) {
    const auto test = conformance::random_exchange_case(trial.seed + i, {group.size()});
    (void)conformance::soak_exchange(group, test, device, kPairsEach);
  }
}

void report(const Fd& to, const std::string& text) {
  const std::string line = fmt::format("{} {}", now_ns(), text);
  if (write(to.get(), line.data(), line.size()) < 0) std::perror("kill_trials");
}

// Starts the driver, makes the context and loads the kernels, which takes seconds where many
// processes do it at once and cannot be interrupted. False: no GPU.
bool start_device(const Trial& trial, int rank) {
  if (trial.device == "cpu") return true;
  prepare_for_shared_gpus();
  const int num_gpus = num_cuda_devices();
  if (num_gpus == 0) return false;
  (void)Tensor(DType::kU8, {1}, Device::cuda(rank % num_gpus));
  return true;
}

int be_rank(const Trial& trial, int rank, std::atomic<int>& num_ready, const Fd& to) {
  const bool can_run = start_device(trial, rank);
  ++num_ready;
  if (!can_run) return kNoGpu;
  while (num_ready < trial.num_ranks) usleep(500);
  if (trial.is_late(rank)) usleep(static_cast<useconds_t>(trial.delay_ms * 1000));
  try {
    const Group group =
        Group::from(rank, trial.num_ranks, trial.store,
                    {.engine = "shm", .timeout_ms = trial.timeout_ms, .secret = kSecret});
    work(group, trial);
    group.barrier();
    report(to, kTrialDone);
  } catch (const Error& error) {
    report(to, fmt::format("{}: {}", name_of(error.code()), error.what()));
  } catch (const std::exception& error) {
    report(to, fmt::format("exception: {}", error.what()));
  }
  return 0;
}

std::array<Fd, 2> make_pipe() {
  std::array<int, 2> ends{};
  require(pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) == 0, Errc::kSystem,
          "kill_trials: pipe2 failed with error {}", errno);
  return {Fd(ends[0]), Fd(ends[1])};
}

}  // namespace

bool Trial::is_victim(int rank) const {
  return std::find(victims.begin(), victims.end(), rank) != victims.end();
}

bool Trial::is_late(int rank) const { return fault == Fault::kLate && is_victim(rank); }

std::string Trial::describe() const {
  constexpr const char* kNames[] = {"kill", "stop", "late start"};
  return fmt::format("seed {}: {} of ranks {} of {}, signal {}, after {} ms, store {}", seed,
                     kNames[static_cast<std::size_t>(fault)], fmt::join(victims, ","), num_ranks,
                     signal, delay_ms, store);
}

Trial random_trial(std::uint64_t seed, const std::string& device, std::int64_t timeout_ms,
                   const std::filesystem::path& folder) {
  std::uint64_t counter = 0;
  const auto draw = [&](std::int64_t count) {
    return static_cast<int>(random_bits(seed, counter++) % static_cast<std::uint64_t>(count));
  };
  Trial trial;
  trial.seed = seed;
  trial.fault = static_cast<Fault>(std::max(0, draw(4) - 1));  // as many kills as others
  trial.num_ranks = 2 + draw(5);
  trial.victims = {draw(trial.num_ranks)};
  if (trial.num_ranks > 3 && draw(3) == 0) {
    trial.victims.push_back((trial.victims[0] + 1 + draw(trial.num_ranks - 1)) % trial.num_ranks);
  }
  constexpr std::array kSignals{SIGKILL, SIGTERM, SIGSEGV};
  trial.signal =
      trial.fault == Fault::kStop ? SIGSTOP : kSignals[static_cast<std::size_t>(draw(3))];
  if (trial.fault == Fault::kLate) trial.signal = 0;
  trial.delay_ms = trial.fault == Fault::kLate
                       ? draw(2 * timeout_ms)
                       : draw(device == "cpu" ? kMaxDelayMs : kMaxGpuDelayMs);
  trial.timeout_ms = timeout_ms;
  trial.device = device;
  trial.name = fmt::format("switchyard-trial-{}-{}", getpid(), seed);
  const std::array stores{"unix:@" + trial.name, (folder / trial.name).string(),
                          fmt::format("127.0.0.1:{}", free_port())};
  trial.store = stores[static_cast<std::size_t>(draw(3))];
  return trial;
}

std::vector<TrialRank> start(const Trial& trial) {
  const Shared<std::atomic<int>> num_ready;
  std::vector<TrialRank> ranks(static_cast<std::size_t>(trial.num_ranks));
  const pid_t parent = getpid();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const int rank = static_cast<int>(i);
    std::array<Fd, 2> ends = make_pipe();
    ranks[i].pid = fork();
    require(ranks[i].pid >= 0, Errc::kSystem, "kill_trials: fork failed with error {}", errno);
    if (ranks[i].pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (getppid() != parent) _exit(1);
      setpgid(0, i == 0 ? 0 : ranks[0].pid);
      _exit(be_rank(trial, rank, *num_ready, ends[1]));
    }
    setpgid(ranks[i].pid, ranks[0].pid);
    ranks[i].reports = std::move(ends[0]);
  }
  const Deadline deadline = Deadline::after_ms(kMaxReadyMs);
  while (*num_ready < trial.num_ranks) {
    require(!deadline.expired(), Errc::kTimeout,
            "kill_trials: {} of {} ranks were ready to start after {} s", num_ready->load(),
            trial.num_ranks, kMaxReadyMs / 1000);
    usleep(500);
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::int64_t late_ms = trial.is_late(static_cast<int>(i)) ? trial.delay_ms : 0;
    ranks[i].since_ns = now_ns() + late_ms * 1'000'000;
  }
  return ranks;
}

bool TrialRank::has_ended() {
  int status = 0;
  if (waitpid(pid, &status, WNOHANG) != pid) return false;
  end_ns = now_ns();
  exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  std::array<char, 8192> line{};
  const ssize_t size = read(reports.get(), line.data(), line.size() - 1);
  if (size <= 0) return true;
  char* text = nullptr;
  end_ns = std::strtoll(line.data(), &text, 10);
  report = text + 1;
  return true;
}

bool TrialRank::is_explained() const {
  for (const Errc code : {Errc::kPeerLost, Errc::kTimeout, Errc::kAborted}) {
    if (report.starts_with(std::string(name_of(code)) + ": ")) return true;
  }
  return false;
}

}  // namespace switchyard::test
