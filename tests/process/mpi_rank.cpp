// SPDX-License-Identifier: Apache-2.0
//
// mpi_rank.cpp: the program that the tests start under mpirun. Arguments: the task, ranks per host,
// the rank that behaves differently, and what it does.

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <signal.h>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "switchyard/error.h"
#include "switchyard/group.h"

#include "conformance/exchange_suite.h"
#include "core/clock.h"
#include "core/settings.h"
#include "engine/engine.h"
#include "support/cut_links.h"

namespace switchyard {
namespace {

using conformance::ExchangeCase;

constexpr int kErrorExitCode = 7;

// Every layout with both contracts; sizes at random beside.
std::vector<ExchangeCase> cases_of(int num_ranks) {
  std::map<std::pair<Layout, Reduce>, int> tried;
  std::vector<ExchangeCase> cases;
  for (const ExchangeCase& test : conformance::exchange_cases({num_ranks})) {
    if (++tried[{test.layout, test.reduce}] <= 3) cases.push_back(test);
  }
  return cases;
}

int exchange() {
  const Group group = Group::from_environment();
  int num_cases = 0;
  std::map<Layout, int> layouts;
  for (const ExchangeCase& test : cases_of(group.size())) {
    if (!conformance::check_exchange(group, test).skipped.empty()) continue;
    ++num_cases;
    ++layouts[test.layout];
  }
  for (const ExchangeCase& test : conformance::two_in_flight_cases(group.size())) {
    conformance::check_two_in_flight(group, test);
  }
  if (group.rank() == 0) {
    std::printf("engine %s, %d ranks, %d of a host, %d layouts, %s\n", group.engine_name(),
                group.size(), group.host_size(), static_cast<int>(layouts.size()),
                num_cases >= 2 * static_cast<int>(layouts.size()) ? "many cases" : "few cases");
  }
  return 0;
}

// Each host exchanges for itself, then each set of ranks of equal place in their hosts.
int split() {
  const Group group = Group::from_environment();
  for (const Group& part :
       {group.split(group.rank() % 2, -group.rank()), group.split(group.host_rank()),
        Group(group.engine().make_host_group())}) {
    for (const ExchangeCase& test : cases_of(part.size())) conformance::check_exchange(part, test);
  }
  if (group.rank() == 0) std::printf("split is well\n");
  return 0;
}

// A rank that is stopped would keep mpirun: a child of it ends it once the others are done.
void end_as(const std::string& deed) {
  if (deed == "cut") {
    test::cut_tcp_links();
    return;
  }
  const pid_t own = getpid();
  if (deed == "stop" && fork() == 0) {
    sleep(5);
    kill(own, SIGKILL);
    _exit(0);
  }
  raise(deed == "kill" ? SIGKILL : SIGSTOP);
}

int fault(int victim, const std::string& deed) {
  const int rank = std::atoi(std::getenv("OMPI_COMM_WORLD_RANK"));
  if (rank == victim && deed == "late") {
    sleep(5);
    _exit(0);
  }
  const Group& group = *new Group(Group::from_environment());  // is there when the process ends
  const std::vector<ExchangeCase> cases = cases_of(group.size());
  std::int64_t start = now_ns();
  try {
    for (int round = 0;; ++round) {
      if (round == 3 && group.rank() == victim) end_as(deed);
      start = now_ns();
      conformance::check_exchange(group, cases[static_cast<std::size_t>(round) % cases.size()]);
    }
  } catch (const Error& error) {
    std::fprintf(stderr, "rank %d after %.1f s: %s: %s\n", rank,
                 static_cast<double>(now_ns() - start) * 1e-9, name_of(error.code()), error.what());
  }
  return kErrorExitCode;
}

// A rank leaves its group, which is well, and ends; then `victim` is lost to those that stay, which
// go on with something else.
int leave(int victim) {
  static const std::int64_t start = now_ns();
  const int rank = std::atoi(std::getenv("OMPI_COMM_WORLD_RANK"));
  if (rank == 1) {
    std::atexit([] {  // the first, so that it comes last
      std::fprintf(stderr, "rank 1 ended after %.1f s\n",
                   static_cast<double>(now_ns() - start) * 1e-9);
    });
  }
  Group group = Group::from_environment();
  group.barrier();
  if (rank == 1) return 0;
  sleep(2);  // rank 1 is in MPI_Finalize
  if (rank == victim) raise(SIGKILL);
  const Group& kept = *new Group(group);
  try {
    kept.control().wait({Phase::kDispatchReceive, 1, victim}, [] { return false; });
  } catch (const Error& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
  }
  sleep(8);
  return kErrorExitCode;
}

// All ranks have left their group, which was well, before `victim` is lost: it will not be in
// MPI_Finalize, where the others are.
int lose_last(int victim, const std::string& deed) {
  static const std::int64_t start = now_ns();
  static const int rank = std::atoi(std::getenv("OMPI_COMM_WORLD_RANK"));
  std::atexit([] {  // the first, so that it comes last
    std::fprintf(stderr, "rank %d ended after %.1f s\n", rank,
                 static_cast<double>(now_ns() - start) * 1e-9);
  });
  {
    const Group earlier = Group::from_environment();
    const Group group = Group::from_environment();
    const Group part = group.split(rank % 2);
    group.barrier();
  }
  if (rank == victim && deed == "busy") sleep(6);
  if (rank != victim || deed == "busy") return 0;
  sleep(2);
  end_as(deed);
  return 0;
}

// Forked copies of a rank, another thread of which is in MPI meanwhile, end like any process, and
// do so soon; the rank stays in its group, and gets the message that it waits for.
int fork_and_exit() {
  static const Group group = Group::from_environment();  // is there when a copy ends
  static const auto channel = group.engine().messages().make_channel();
  const auto words = std::make_shared<std::vector<std::byte>>(64, std::byte{0});
  const int size = group.size();
  const int next = (group.rank() + 1) % size;
  const int previous = (group.rank() + size - 1) % size;
  const MessageId awaited = channel->receive(previous, 1, {words, words->data(), words->size()});
  group.barrier();
  const std::int64_t start = now_ns();
  std::atomic<bool> is_over = false;
  std::thread caller([&] {
    while (!is_over) channel->progress();
  });
  bool have_ended = true;
  for (int i = 0; i < 20 && have_ended; ++i) {
    const pid_t copy = fork();
    if (copy == 0) std::exit(0);
    int status = -1;
    const Deadline deadline = Deadline::after_ms(5000);
    while (waitpid(copy, &status, WNOHANG) == 0 && !deadline.expired()) usleep(1000);
    have_ended = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (!have_ended) kill(copy, SIGKILL);
  }
  is_over = true;
  caller.join();
  const double seconds = static_cast<double>(now_ns() - start) * 1e-9;
  sleep(2);  // who had left would be missed by now
  group.barrier();
  const auto sent = std::make_shared<std::vector<std::byte>>(64, std::byte{7});
  const MessageId own = channel->send(next, 1, {sent, sent->data(), sent->size()});
  group.control().wait({Phase::kDispatchReceive, 1, previous},
                       [&] { return channel->is_done(awaited) && channel->is_done(own); });
  if (*words != *sent) throw std::runtime_error("the message is not what was sent");
  if (group.rank() == 0) std::printf("copies %s\n", have_ended ? "end" : "wait");
  std::fprintf(stderr, "rank %d: its copies took %.1f s\n", group.rank(), seconds);
  return 0;
}

int run(int argc, char** argv) {
  const std::string task = argc > 1 ? argv[1] : "";
  const int ranks_per_host = argc > 2 ? std::atoi(argv[2]) : 1;
  const int victim = argc > 3 ? std::atoi(argv[3]) : -1;
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  if (rank == nullptr) return kErrorExitCode;
  set_setting("SWITCHYARD_HOST_ID", "host " + std::to_string(std::atoi(rank) / ranks_per_host));
  // As under an mpirun over several machines: nobody knows an address where to meet.
  if (task == "meet") setenv("OMPI_COMM_WORLD_LOCAL_SIZE", argv[2], 1);
  if (task == "exchange" || task == "meet") return exchange();
  if (task == "split") return split();
  if (task == "leave") return leave(victim);
  if (task == "last") return lose_last(victim, argc > 4 ? argv[4] : "");
  if (task == "fork") return fork_and_exit();
  if (task == "fault") return fault(victim, argc > 4 ? argv[4] : "");
  std::fprintf(stderr, "mpi_rank: no task \"%s\"\n", task.c_str());
  return kErrorExitCode;
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  try {
    return switchyard::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %s: %s\n", std::getenv("OMPI_COMM_WORLD_RANK"), error.what());
    return switchyard::kErrorExitCode;
  }
}
