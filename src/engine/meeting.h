// SPDX-License-Identifier: Apache-2.0
//
// meeting.h: how processes that are to be one group find each other: through a store each rank says
// who it is, and learns who the others are. What shares memory or connects sockets comes after.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/control.h"
#include "engine/mesh.h"
#include "engine/rendezvous.h"

namespace switchyard {

/// Where and as what a rank meets the others.
struct MeetingPlace {
  std::shared_ptr<StoreServer> server{};  ///< of the store, when this rank runs it
  bool is_served_by_rank_0 = false;
  bool is_for_meeting_only = false;  ///< rank 0 then serves another store for what comes later
  bool claims_ranks = false;         ///< others chose the numbers: two may have the same
  bool is_of_one_group = false;      ///< the store: nobody tries again there
  bool has_launcher = false;         ///< ours, which knows why a rank died
  int launcher_fd = -1;              ///< its control block for this group; -1: there is none
  std::string secret{};              ///< of the group's stores over TCP; may be empty
  std::string first_host{};          ///< by which all ranks know rank 0's machine; may be empty
  /// Addresses of this machine at which ranks elsewhere have reached it; may be empty. Not given:
  /// unknown.
  std::function<std::vector<std::string>()> met_at{};
};

/// A failure that another rank has told, which is not this rank's own.
class HeardError final : public Error {
 public:
  using Error::Error;
};

class Meeting {
 public:
  /// What the owner does while the ranks meet.
  struct Owner {
    /// Throws when it is known already that the group will not be. `peer`: who is awaited, or -1.
    std::function<void(int peer)> check;
    /// The ranks did not meet in time.
    std::function<void(int culprit, const std::string& message)> give_up;
  };

  /// `spec` has rank, size, timeout and the store. Errors: kOutOfMemory (no descriptor), which the
  /// others are told.
  Meeting(const GroupSpec& spec, MeetingPlace place);

  /// Collective. Returns each rank's introduction. Errors: kTimeout (names the ranks that did not
  /// come), kInvalidArgument (ranks that disagree about the job, two of one number), kPeerLost.
  const std::vector<Introduction>& meet(const Owner& owner);
  bool has_met() const { return !ranks_.empty(); }
  const std::vector<Introduction>& ranks() const { return ranks_; }

  /// Once the ranks have met: throws unless `peer` is still the one that this rank met. Errors:
  /// kPeerLost.
  void require_there(int peer) const;
  /// Likewise: throws what a rank said when it gave up. Errors: that rank's, as HeardError.
  void require_nobody_gave_up() const;

  /// After a failure, so that the ranks may try again over the same store.
  void withdraw() noexcept;
  /// Call from a catch block. Withdraws, reports this rank's own error to its peers, and rethrows;
  /// if a peer gave up first, throws that peer's error. A second call for the same failure only
  /// throws.
  [[noreturn]] void give_up();
  /// Throws, after it has told the ranks that still wait.
  [[noreturn]] void fail_for_all(Errc code, const std::string& message);
  [[noreturn]] void fail_unmet(Errc code, const std::string& message) const;

  /// Where this rank accepts peers of its host.
  const Fd& listener() const { return listener_; }
  const Deadline& deadline() const { return deadline_; }
  const MeetingPlace& place() const { return place_; }
  const std::shared_ptr<Store>& store() const { return store_; }

  /// What `action`, which uses the store, returns; errors name rank 0 where that serves it.
  template <typename Action>
  auto with_store(Action&& action) const {
    return place_.is_served_by_rank_0 ? with_peer(rank_, 0, action) : action();
  }
  std::optional<std::string> look_up(const std::string& key, int within_ms) const;

 private:
  Introduction await_introduction(int peer, const Owner& owner);
  void require_own_place();
  void require_nobody_missing(int first, const Owner& owner);
  void tell_failure(Errc code, const std::string& message);
  void tell_reason(const Error& error) noexcept;
  void await_others() noexcept;
  std::string find_reason() const noexcept;
  [[noreturn]] void fail_heard(const std::string& failure) const;
  std::string message_of_this_rank(const std::string& message) const;

  int rank_;
  int size_;
  std::int64_t timeout_ms_;
  std::shared_ptr<Store> store_;
  MeetingPlace place_;
  Deadline deadline_;
  Fd listener_;
  std::string socket_;                     // the listener's name
  std::string own_text_;                   // of this rank's introduction, once it is in the store
  mutable bool is_failure_known_ = false;  // to the others: this rank told it, or was told
  bool has_given_up_ = false;
  std::vector<Introduction> ranks_;
};

}  // namespace switchyard
