// SPDX-License-Identifier: Apache-2.0

#include "engine/remote_exit.h"

#include <poll.h>

#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/service_thread.h"
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
  std::set<std::shared_ptr<MemberLink>> links;
  std::optional<Deadline> end;  // of the waits at the end of the process, which may be in parts
  bool expects_exit = false;
  OwnProcess process;
};

State& state() {
  static State& state = *new State;
  return state;
}

// With the lock held.
void expect_exit(State& own) {
  if (!own.process.is_this_one()) {  // a forked copy, with groups of its own
    own.groups.clear();
    [[maybe_unused]] const auto* const lost =
        new auto(std::make_pair(std::move(own.servers), std::move(own.links)));
    own.servers.clear();
    own.links.clear();
    own.end.reset();
    own.process = {};
  }
  if (std::exchange(own.expects_exit, true)) return;
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

void listen(std::shared_ptr<MemberLink> link) {
  State& own = state();
  const std::lock_guard lock(own.mutex);
  std::erase_if(own.links, [](const auto& one) { return one->is_over(); });
  own.links.insert(std::move(link));
}

void precede_mpi() {
  static const int registered = std::atexit([] { run(); });
  (void)registered;
}

void run() noexcept {
  State& own = state();
  if (!own.process.is_this_one()) return;  // somebody may have held the mutex
  const std::lock_guard lock(own.mutex);
  for (RemoteControl* const group : own.groups) group->leave();
  std::int64_t exit_ms = 0;
  for (const Kept& kept : own.servers) exit_ms = std::max(exit_ms, kept.exit_ms);
  if (!own.end) own.end = Deadline::after_ms(exit_ms);
  for (const Kept& kept : own.servers) {
    while (!kept.server->has_ended() && !own.end->expired()) poll(nullptr, 0, 1);
  }
}

}  // namespace switchyard::remote_exit
