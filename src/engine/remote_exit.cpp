// SPDX-License-Identifier: Apache-2.0

#include "engine/remote_exit.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <set>
#include <vector>

#include "core/clock.h"
#include "engine/remote_control.h"

namespace switchyard::remote_exit {
namespace {

struct Kept {
  std::shared_ptr<StoreServer> server;
  std::int64_t exit_ms = 0;
};

// Never destroyed: other exit handlers may still destroy groups.
struct State {
  std::recursive_mutex mutex;  // a group that is left hands its server over
  std::set<RemoteControl*> groups;
  std::vector<Kept> servers;
  pid_t process = 0;  // a forked copy of it has none of the threads
};

State& state() {
  static State& state = *new State;
  return state;
}

// With the lock held.
void expect_exit(State& own) {
  if (own.process != 0) return;
  own.process = getpid();
  std::atexit([] { run(); });
}

}  // namespace

void add(RemoteControl& group) {
  State& own = state();
  const std::lock_guard lock(own.mutex);
  expect_exit(own);
  own.groups.insert(&group);
}

void remove(RemoteControl& group) {
  State& own = state();
  const std::lock_guard lock(own.mutex);
  own.groups.erase(&group);
}

void keep(std::shared_ptr<StoreServer> server, std::int64_t exit_ms) {
  server->end_when_over();
  State& own = state();
  const std::lock_guard lock(own.mutex);
  expect_exit(own);
  std::erase_if(own.servers, [](const Kept& kept) { return kept.server->has_ended(); });
  own.servers.push_back({std::move(server), exit_ms});
}

void precede_mpi() {
  static const int registered = std::atexit([] { run(); });
  (void)registered;
}

void run() noexcept {
  State& own = state();
  const std::lock_guard lock(own.mutex);
  if (own.process != getpid()) return;
  for (RemoteControl* const group : own.groups) group->leave();
  std::int64_t exit_ms = 0;
  for (const Kept& kept : own.servers) exit_ms = std::max(exit_ms, kept.exit_ms);
  const Deadline deadline = Deadline::after_ms(exit_ms);
  for (const Kept& kept : own.servers) {
    while (!kept.server->has_ended() && !deadline.expired()) poll(nullptr, 0, 1);
  }
}

}  // namespace switchyard::remote_exit
