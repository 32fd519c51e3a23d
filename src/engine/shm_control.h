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

class ShmControl final : public SharedControl {
 public:
  ShmControl(const JoinRequest& request, StoreAccess access);
  ~ShmControl() override;

  /// Collective: meets the peers, connects to them, shares the block. `launcher_fd`: the block of
  /// our launcher, or -1. Errors as join_shm.
  void join(int launcher_fd);

  const Fd& socket_to(int peer) const { return links_[static_cast<std::size_t>(peer)].socket; }

 private:
  int find_lost_peer() noexcept override;
  int store_rank() const override { return is_served_by_rank_0_ ? 0 : -1; }
  void map_control(const Fd& memory);
  std::vector<Introduction> meet(const std::string& socket);
  template <typename Action>
  auto with_store(Action&& action) {
    return is_served_by_rank_0_ ? with_peer(rank(), 0, action) : action();
  }
  std::optional<std::string> look_up(const std::string& key, int within_ms);
  void tell_in_place_of(const std::vector<int>& missing, const std::string& message);
  [[noreturn]] void fail_unmet(const std::string& message);
  [[noreturn]] void fail_missing(const std::vector<int>& missing);
  void share_control();

  std::shared_ptr<StoreServer> server_;
  Deadline deadline_;  // of the set-up
  Mapping control_memory_;
  std::vector<PeerLink> links_;
  bool has_launcher_ = false;
  bool is_served_by_rank_0_ = false;
  std::atomic<std::int64_t> lost_since_ns_ = 0;
};

}  // namespace switchyard
