// SPDX-License-Identifier: Apache-2.0
//
// shm_control.h: the control of ranks that are processes of one host. The block is a memfd; each
// two ranks keep a socket between them, whose end shows when a process dies.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/mesh.h"
#include "engine/rendezvous.h"
#include "engine/shared_control.h"
#include "transport/shared_memory.h"

namespace switchyard {

/// With a descriptor, over a link.
struct Parcel {
  std::uint64_t number = 0;  ///< 0: the control block; else which swap it belongs to
  std::uint64_t bytes = 0;
};

/// How the ranks of a group meet.
struct ShmMeeting {
  std::shared_ptr<StoreServer> server{};  ///< of the store, when this rank runs it
  bool is_served_by_rank_0 = false;
  bool is_for_meeting_only = false;  ///< rank 0 then serves another store for what comes later
  bool claims_ranks = false;         ///< others chose the numbers: two may have the same
  bool has_launcher = false;         ///< ours, which knows why a rank died
  int launcher_fd = -1;              ///< its control block for this group; -1: rank 0 makes one
};

class ShmControl final : public SharedControl {
 public:
  ShmControl(GroupSpec spec, ShmMeeting meeting);
  ~ShmControl() override;

  /// Collective: meets the peers, connects to them, shares the block. Errors as join_shm.
  void join();

  bool has_launcher() const { return meeting_.has_launcher; }

  const Fd& socket_to(int peer) const { return links_[static_cast<std::size_t>(peer)].socket; }

 private:
  int find_lost_peer() noexcept override;
  int store_rank() const override { return meeting_.is_served_by_rank_0 ? 0 : -1; }
  void map_control(const Fd& memory);
  void map_launcher_block();
  void check_set_up(int peer);
  std::vector<Introduction> meet(const std::string& socket);
  Introduction await_introduction(int peer);
  void require_own_place();
  void withdraw() noexcept;
  void serve_store(const std::vector<Introduction>& ranks);
  void move_to_own_store(const std::vector<Introduction>& ranks);
  template <typename Action>
  auto with_store(Action&& action) {
    return meeting_.is_served_by_rank_0 ? with_peer(rank(), 0, action) : action();
  }
  std::optional<std::string> look_up(const std::string& key, int within_ms);
  void tell_failure(Errc code, const std::string& message);
  [[noreturn]] void fail_unmet(Errc code, const std::string& message);
  [[noreturn]] void fail_for_all(Errc code, const std::string& message);
  [[noreturn]] void end_for_all(int culprit, const std::string& message);
  void require_nobody_missing(int first);
  void share_control();

  ShmMeeting meeting_;
  Deadline deadline_;     // of the set-up
  std::string own_text_;  // of this rank's introduction, once it is in the store
  Mapping control_memory_;
  std::vector<PeerLink> links_;
  std::atomic<std::int64_t> lost_since_ns_ = 0;
};

}  // namespace switchyard
