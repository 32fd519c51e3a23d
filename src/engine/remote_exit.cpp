// SPDX-License-Identifier: Apache-2.0

#include "engine/remote_exit.h"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
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

// Of one process. Never destroyed: other exit handlers may still destroy groups.
struct State {
  std::recursive_mutex mutex;  // a group that is left hands its server over
  std::set<RemoteControl*> groups;
  std::vector<Kept> servers;
  std::set<std::shared_ptr<MemberLink>> links;
  std::shared_ptr<MemberLink> told;  // the link over which others learn that this process is lost
  std::optional<Deadline> end;       // of the waits at its end, which may be in parts
  bool expects_exit = false;
  OwnProcess process;

  std::int64_t exit_ms() const {
    std::int64_t longest = 0;
    for (const Kept& kept : servers) longest = std::max(longest, kept.exit_ms);
    return longest;
  }
};

// A forked copy of a process begins with nothing: groups, servers and links are of the original,
// one of whose threads may have held the mutex. It has the same exit handlers.
State& state() {
  static std::atomic<State*> latest = new State;
  State* own = latest;
  if (own->process.is_this_one()) return *own;
  auto fresh = std::make_unique<State>();
  fresh->expects_exit = own->expects_exit;
  if (latest.compare_exchange_strong(own, fresh.get())) return *fresh.release();
  return *own;
}

// With the lock held.
void expect_exit(State& own) {
  if (std::exchange(own.expects_exit, true)) return;
  std::atexit([] { run(); });
}

template <typename Done>
void await_servers(const State& own, const Deadline& deadline, Done&& is_done) {
  for (const Kept& kept : own.servers) {
    while (!is_done(*kept.server) && !deadline.expired()) poll(nullptr, 0, 1);
  }
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
  own.links.insert(link);
  const bool is_larger = !own.told || own.told->is_over() || own.told->size() <= link->size();
  if (is_larger) own.told.swap(link);
  if (link) link->be_done();
}

void finish() noexcept {
  State& own = state();
  const std::lock_guard lock(own.mutex);
  for (const auto& link : own.links) link->leave();
  await_servers(own, Deadline::after_ms(own.exit_ms()),
                [](const StoreServer& server) { return server.has_ended(); });
}

void precede_mpi() {
  static const int registered = std::atexit([] { run(); });
  (void)registered;
}

void run() noexcept {
  State& own = state();
  const std::lock_guard lock(own.mutex);
  for (RemoteControl* const group : own.groups) group->leave();
  if (!own.end) own.end = Deadline::after_ms(own.exit_ms());
  await_servers(own, *own.end, [](const StoreServer& server) {
    return server.has_ended() || server.only_awaits_ends();
  });
}

}  // namespace switchyard::remote_exit
