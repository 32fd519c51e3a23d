// SPDX-License-Identifier: Apache-2.0

#include "engine/shm_engine.h"

#include <map>
#include <mutex>
#include <utility>

#include "core/fail.h"
#include "engine/rendezvous.h"
#include "engine/shm_control.h"
#include "engine/shm_windows.h"

namespace switchyard {
namespace {

// Groups that this process has joined, by where they met. Collective calls come in one order, so
// ranks agree on it.
class JoinedGroups {
 public:
  static JoinedGroups& instance() {
    static JoinedGroups groups;
    return groups;
  }
  int count(const JoinRequest& request) {
    const std::lock_guard lock(mutex_);
    return counts_[place_of(request)];
  }
  void add(const JoinRequest& request) {
    const std::lock_guard lock(mutex_);
    if (has_name(request)) ++counts_[place_of(request)];
  }

 private:
  // The caller's functions have none: each group needs new ones.
  static bool has_name(const JoinRequest& request) {
    return !request.meeting || !request.store.empty();
  }
  // Ranks may be threads of one process: each counts for itself.
  static std::string place_of(const JoinRequest& request) {
    return request.claims_ranks ? fmt::format("{} {}", request.ranks.rank, request.store) : "";
  }

  std::mutex mutex_;
  std::map<std::string, int> counts_;
};

class ShmEngine final : public Engine {
 public:
  static std::shared_ptr<Engine> make(GroupSpec spec, ShmMeeting meeting) {
    auto control = std::make_unique<ShmControl>(std::move(spec), std::move(meeting));
    control->join();
    const bool has_launcher = control->has_launcher();
    auto windows = std::make_unique<ShmWindows>(*control);
    return std::shared_ptr<Engine>(
        new ShmEngine(std::move(control), std::move(windows), has_launcher));
  }

 private:
  ShmEngine(std::unique_ptr<Control> control, std::unique_ptr<WindowSource> windows,
            bool has_launcher)
      : Engine("shm", std::move(control), std::move(windows)), has_launcher_(has_launcher) {}

  std::shared_ptr<Engine> make_subgroup(const GroupSpec& spec, const std::string& name) override {
    (void)name;  // the store is the subgroup's own part
    ShmMeeting meeting;
    meeting.is_for_meeting_only = true;
    meeting.has_launcher = has_launcher_;
    return make(spec, std::move(meeting));
  }

  bool has_launcher_;
};

}  // namespace

std::shared_ptr<Engine> join_shm(const JoinRequest& request) {
  try {
    const int number = JoinedGroups::instance().count(request);
    StoreAccess access = open_store(request, number);
    ShmMeeting meeting;
    meeting.server = std::move(access.server);
    meeting.is_for_meeting_only = request.meeting != nullptr;
    meeting.is_served_by_rank_0 = request.control_fd < 0 && !request.meeting;
    meeting.claims_ranks = request.claims_ranks;
    // The launcher's block serves one group; a later one of the same processes makes its own.
    meeting.launcher_fd = number == 0 ? request.control_fd : -1;
    meeting.has_launcher = meeting.launcher_fd >= 0;
    std::shared_ptr<Engine> engine = ShmEngine::make(
        {request.ranks.rank, request.ranks.size, request.timeout_ms, std::move(access.store)},
        std::move(meeting));
    JoinedGroups::instance().add(request);
    return engine;
  } catch (...) {
    close_store(request);
    throw;
  }
}

}  // namespace switchyard
