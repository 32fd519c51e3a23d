// SPDX-License-Identifier: Apache-2.0
//
// rank_program.cpp: the program that the launcher tests start. The first argument names the task,
// the second a rank that behaves differently.

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <signal.h>
#include <string>

#include "switchyard/error.h"
#include "switchyard/group.h"

#include "core/clock.h"
#include "engine/engine.h"

namespace switchyard {
namespace {

constexpr int kErrorExitCode = 7;

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "(none)" : text;
}

int say_hello() {
  std::printf("out %s of %s\n", variable("RANK").c_str(), variable("WORLD_SIZE").c_str());
  std::fprintf(stderr, "err %s\nno line end", variable("RANK").c_str());
  return 0;
}

int show_variables() {
  for (const char* name : {"RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_PROCID", "COLOUR"}) {
    std::printf("%s=%s\n", name, variable(name).c_str());
  }
  return 0;
}

int show_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return kErrorExitCode;
  std::string text = "cores";
  for (std::size_t core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) text += " " + std::to_string(core);
  }
  std::printf("%s\n", text.c_str());
  return 0;
}

// The kernel's memory policy for this rank's window, or "refused" where a sandbox hides it.
int show_window_policy() {
  const Group group = Group::from_environment();
  const auto window = group.engine().windows().make_window(4096);
  int mode = 0;
  const unsigned long at_address = 2;  // MPOL_F_ADDR
  const bool is_known =
      syscall(SYS_get_mempolicy, &mode, nullptr, 0ul, window->base(group.rank()), at_address) == 0;
  std::printf("policy %s\n", is_known ? std::to_string(mode).c_str() : "refused");
  group.barrier();
  return 0;
}

int meet() {
  const Group group = Group::from_environment();
  const auto window = group.engine().windows().make_window(4096);
  window->base(0)[group.rank()] = std::byte{1};
  group.barrier();
  int sum = 0;
  for (int rank = 0; rank < group.size(); ++rank) sum += static_cast<int>(window->base(0)[rank]);
  group.barrier();
  if (group.rank() == 0) std::printf("%s sum %d\n", group.engine_name(), sum);
  return 0;
}

// Every rank waits for `special`, which runs `act` and never notifies.
int wait_for_nothing(int special, void (*act)()) {
  const Group group = Group::from_environment();
  group.barrier();
  group.control().enter(Phase::kDispatchReceive, 17);
  if (group.rank() == special) act();
  const int peer = group.rank() == special ? (special + 1) % group.size() : special;
  group.control().wait({Phase::kDispatchReceive, 17, peer}, [] { return false; });
  return 0;
}

// Pairs; the one without `special` waits too.
int wait_in_pairs(int special, void (*act)()) {
  const Group group = Group::from_environment();
  const Group pair = group.split(group.rank() / 2);
  group.barrier();
  if (group.rank() == special) act();
  pair.control().wait({Phase::kDispatchReceive, 17, 1 - pair.rank()}, [] { return false; });
  return 0;
}

void die() {
  std::fprintf(stderr, "store %s\n", variable("SWITCHYARD_STORE").c_str());
  std::fprintf(stderr, "dies at %lld\n", static_cast<long long>(now_ns()));
  raise(SIGKILL);
}

// Never checks the group; SIGTERM ends it.
[[noreturn]] void sleep_on() {
  std::fprintf(stderr, "store %s\npid %d\n", variable("SWITCHYARD_STORE").c_str(), getpid());
  for (;;) pause();
}

// Ignores SIGTERM, so only SIGKILL ends it.
[[noreturn]] void hang() {
  signal(SIGTERM, SIG_IGN);
  sleep_on();
}

// Waits in the library, so whatever ends the group ends this rank.
void wait_for_abort() {
  const Group group = Group::from_environment();
  std::fprintf(stderr, "pid %d\n", getpid());
  group.control().wait({Phase::kDispatchReceive, 17, -1}, [] { return false; });
}

int run(const std::string& task, int special) {
  const int rank = std::atoi(variable("RANK").c_str());
  if (task == "hello") return say_hello();
  if (task == "variables") return show_variables();
  if (task == "cores") return show_cores();
  if (task == "window_policy") return show_window_policy();
  if (task == "meet") return meet();
  if (task == "die") return wait_for_nothing(special, die);
  if (task == "die_in_pairs") return wait_in_pairs(special, die);
  if (task == "exit3") return wait_for_nothing(special, [] { _exit(3); });
  if (task == "stop") return wait_for_nothing(special, [] { raise(SIGSTOP); });
  if (task == "hang") hang();
  if (task == "sleep") sleep_on();
  if (task == "wait") return wait_for_abort(), 0;
  if (task == "hang_or_fail") return rank == special ? 3 : (hang(), 0);
  if (task == "absent") return rank == special ? 0 : meet();
  return 99;
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  try {
    return switchyard::run(argc > 1 ? argv[1] : "", argc > 2 ? std::atoi(argv[2]) : -1);
  } catch (const switchyard::Error& error) {
    std::fprintf(stderr, "%s: %s\n", switchyard::name_of(error.code()), error.what());
    return switchyard::kErrorExitCode;
  }
}
