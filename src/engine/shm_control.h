// SPDX-License-Identifier: Apache-2.0
//
// shm_control.h: the control of ranks that are processes of one host. The block is a memfd; each
// two ranks keep a socket between them, whose end shows when a process dies.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "core/service_thread.h"
#include "engine/meeting.h"
#include "engine/mesh.h"
#include "engine/shared_control.h"
#include "transport/shared_memory.h"

namespace switchyard {

/// With a descriptor, over a link.
struct Parcel {
  std::uint64_t number = 0;  ///< 0: the control block; else which swap it belongs to
  std::uint64_t bytes = 0;
};

class ShmControl final : public SharedControl {
 public:
  /// `meeting` may have taken place.
  ShmControl(GroupSpec spec, std::unique_ptr<Meeting> meeting);
  ~ShmControl() override;

  /// Collective: meets the peers, connects to them, shares the block. Errors as make_shm_engine.
  void join();

  bool has_launcher() const { return place_.has_launcher; }

  const Fd& socket_to(int peer) const { return links_[static_cast<std::size_t>(peer)].socket; }

 private:
  int find_lost_peer() noexcept override;
  int store_rank() const override { return place_.is_served_by_rank_0 ? 0 : -1; }
  void map_control(const Fd& memory);
  void map_launcher_block();
  void check_set_up(int peer);
  void serve_store(const std::vector<Introduction>& ranks);
  void move_to_own_store(const std::vector<Introduction>& ranks);
  void share_control();

  std::unique_ptr<Meeting> meeting_;  // until the group is complete
  MeetingPlace place_;
  Mapping control_memory_;
  std::vector<PeerLink> links_;
  std::atomic<std::int64_t> lost_since_ns_ = 0;
  OwnProcess process_;
};

}  // namespace switchyard
