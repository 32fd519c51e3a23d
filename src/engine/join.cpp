// SPDX-License-Identifier: Apache-2.0

#include "engine/join.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "core/fail.h"
#include "engine/meeting.h"
#include "engine/mpi_engine.h"
#include "engine/mpi_meeting.h"
#include "engine/mpi_module.h"
#include "engine/shm_engine.h"

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
    return has_name(request) ? counts_[place_of(request)] : 0;
  }
  void add(const JoinRequest& request) {
    const std::lock_guard lock(mutex_);
    if (has_name(request)) ++counts_[place_of(request)];
  }

 private:
  // The caller's functions have none: each group needs new ones. Over a communicator, ranks meet at
  // a new store each time.
  static bool has_name(const JoinRequest& request) {
    return !request.communicator && (!request.meeting || !request.store.empty());
  }
  // Ranks may be threads of one process: each counts for itself.
  static std::string place_of(const JoinRequest& request) {
    return request.claims_ranks ? fmt::format("{} {}", request.ranks.rank, request.store) : "";
  }

  std::mutex mutex_;
  std::map<std::string, int> counts_;
};

// By which all ranks know the machine of rank 0, which serves the store there.
std::string first_host_of(const JoinRequest& request) {
  if (!request.store.starts_with("tcp://") || request.control_fd >= 0 || request.meeting) return "";
  return Address::parse(request.store).host;
}

/// A request that says where to meet.
struct PlacedRequest {
  JoinRequest request;
  std::shared_ptr<StoreServer> server{};  ///< of rank 0, until the group is complete
  bool is_over_mpi = false;
};

MeetingPlace place_of(const PlacedRequest& placed, int number, StoreAccess& access) {
  const JoinRequest& request = placed.request;
  MeetingPlace place;
  place.server = std::move(access.server);
  place.is_for_meeting_only = request.meeting != nullptr;
  place.is_served_by_rank_0 = placed.is_over_mpi || (request.control_fd < 0 && !request.meeting);
  place.is_of_one_group = placed.is_over_mpi;
  place.claims_ranks = request.claims_ranks;
  // The launcher's block serves one group; a later one of the same processes makes its own.
  place.launcher_fd = number == 0 ? request.control_fd : -1;
  place.has_launcher = place.launcher_fd >= 0;
  place.secret = request.secret;
  place.first_host = first_host_of(request);
  const std::shared_ptr<StoreServer>& met = placed.is_over_mpi ? placed.server : place.server;
  if (met) place.met_at = [met] { return met->met_at(); };
  return place;
}

// Ranks of a communicator, and ranks on several hosts that have no address to meet at learn one
// over MPI.
PlacedRequest with_meeting_place(const JoinRequest& given, const std::string& name) {
  const bool has_place = given.meeting || !given.store.empty() || given.control_fd >= 0;
  const bool needs_none = has_place || name == "shm" || !given.ranks.is_spread;
  if (!given.communicator && needs_none) return {given};
  MpiMeeting meeting = meet_over_mpi(given);
  PlacedRequest placed{given, std::move(meeting.server), true};
  placed.request.meeting = std::move(meeting.store);
  placed.request.secret = std::move(meeting.secret);
  return placed;
}

// Lets the ranks meet, to see on how many hosts they are. Ranks of our launcher are on one.
std::string engine_for(Meeting& meeting) {
  if (meeting.place().has_launcher) return "shm";
  try {
    meeting.meet({[](int) {}, [](int, const std::string&) {}});
  } catch (...) {
    meeting.give_up();
  }
  const std::vector<int> hosts = hosts_of(meeting.ranks());
  const bool is_one = std::all_of(hosts.begin(), hosts.end(), [](int host) { return host == 0; });
  return is_one ? "shm" : "mpi";
}

}  // namespace

std::shared_ptr<Engine> join_processes(const std::string& name, const JoinRequest& given) {
  std::optional<PlacedRequest> placed;
  try {
    const int number = JoinedGroups::instance().count(given);
    placed = with_meeting_place(given, name);
    const JoinRequest& request = placed->request;
    StoreAccess access = open_store(request, number);
    const GroupSpec spec{request.ranks.rank, request.ranks.size, request.timeout_ms,
                         std::move(access.store)};
    auto meeting = std::make_unique<Meeting>(spec, place_of(*placed, number, access));
    const std::string chosen = name == "auto" ? engine_for(*meeting) : name;
    const int* const communicator = given.communicator ? &*given.communicator : nullptr;
    const MpiWish wish{name == "mpi" || communicator != nullptr, communicator};
    std::shared_ptr<Engine> engine = chosen == "shm"
                                         ? make_shm_engine(spec, std::move(meeting))
                                         : make_mpi_engine(spec, std::move(meeting), wish);
    JoinedGroups::instance().add(given);
    return engine;
  } catch (const Error& error) {
    const bool is_lost = error.code() == Errc::kTimeout || error.code() == Errc::kPeerLost ||
                         error.code() == Errc::kAborted;
    if (is_lost) forbid_mpi_finalize();  // the ranks may have met over MPI
    if (placed) close_store(placed->request);
    throw;
  } catch (...) {
    if (placed) close_store(placed->request);
    throw;
  }
}

}  // namespace switchyard
