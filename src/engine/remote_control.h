// SPDX-License-Identifier: Apache-2.0
//
// remote_control.h: the control of ranks that share no memory: each keeps one connection to a
// server at rank 0, which hears of every rank that dies, falls silent or leaves, counts barriers
// and keeps the first cause of an end. No other rank is needed for that, and no MPI.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "core/service_thread.h"
#include "engine/group_server.h"
#include "transport/member_link.h"

namespace switchyard {

class RemoteControl final : public Control {
 public:
  /// Collective: meets the peers, unless they have met, and connects to rank 0. `spec.hosts` is
  /// filled from what the ranks say. Errors: kTimeout (names the ranks that did not come),
  /// kInvalidArgument, kPeerLost, kOutOfMemory (no descriptor), kSystem; what another rank said
  /// when it gave up, as HeardError.
  static std::unique_ptr<RemoteControl> join(GroupSpec spec, Meeting& meeting);
  ~RemoteControl() override;

  bool abort(Errc code, int culprit, const std::string& reason) noexcept override;
  void enter(Phase phase, std::uint64_t call) noexcept override;

  /// Waits for nobody from now on; the server of rank 0 stays until all ranks have left. Does
  /// nothing in a forked copy of the process.
  void leave() noexcept;

  /// As MemberLink.
  void when_ended(std::function<void()> action) { link_->when_ended(std::move(action)); }
  /// From now on a wait looks at its condition often: messages ring no bell.
  void expect_messages() { expects_messages_ = true; }
  /// A rank that has left still learns why the group of the others ended, for when_ended.
  void listen_after_leaving() { listens_after_leaving_ = true; }
  /// For the stores of subgroups; all ranks of the group have it.
  const std::string& secret() const { return secret_; }
  /// As MeetingPlace::met_at.
  std::vector<std::string> met_at() const;

 private:
  struct Parts;

  RemoteControl(GroupSpec spec, Parts parts);
  std::uint32_t bell() noexcept override;
  void meet_all(std::uint64_t number) override;
  void rest(std::uint32_t seen, std::int64_t ns) override;
  bool has_cause() const noexcept override { return link_->has_ended(); }
  AbortCause abort_cause() const override;
  bool has_left(int peer) const noexcept override;
  int missing_peer(const WaitSite& site) override;
  std::string place_of(int peer) const override;
  int store_rank() const override { return 0; }

  std::shared_ptr<StoreServer> server_;  // of rank 0
  std::string secret_;
  std::shared_ptr<MemberLink> link_;
  // Until all ranks have joined: who gives up before is missed there alone.
  const Meeting* meeting_ = nullptr;
  std::atomic<bool> expects_messages_ = false;
  std::atomic<bool> listens_after_leaving_ = false;
  OwnProcess process_;
};

}  // namespace switchyard
