// SPDX-License-Identifier: Apache-2.0
//
// shm_control.cpp: how processes become a group. Through the store each rank says where it listens;
// each two ranks then connect a Unix packet socket; over it travel the descriptors of the control
// block (unless our launcher made it) and later of windows. P ranks cost P * (P - 1) / 2 sockets.

#include "engine/shm_control.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "core/fail.h"
#include "core/interrupt.h"
#include "core/text.h"
#include "transport/hash_store.h"
#include "transport/socket_store.h"

namespace switchyard {
namespace {

constexpr std::int64_t kLauncherGraceNs = 250'000'000;  // the launcher knows why a rank died

}  // namespace

ShmControl::ShmControl(GroupSpec spec, std::unique_ptr<Meeting> meeting)
    : SharedControl(std::move(spec)), meeting_(std::move(meeting)), place_(meeting_->place()) {}

ShmControl::~ShmControl() {
  if (control_memory_.data() != nullptr && process_.is_this_one()) leave();
}

void ShmControl::map_control(const Fd& memory) {
  const std::size_t bytes = ControlBlock::size_bytes(size());
  check_shared_memory(memory, bytes);
  control_memory_ = Mapping(memory, bytes);
  attach(ControlBlock(control_memory_.data(), size()));
  enter(Phase::kSetup, 0);
}

// With our launcher the control block is there first: a rank that dies meanwhile ends the set-up.
void ShmControl::map_launcher_block() {
  const int fd = place_.launcher_fd;
  const Fd memory(fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!memory.has_value()) fail_errno("SWITCHYARD_CONTROL_FD", std::to_string(fd));
  fcntl(fd, F_SETFD, FD_CLOEXEC);  // it is for this process, not for its children
  map_control(memory);
}

void ShmControl::join() {
  if (place_.launcher_fd >= 0) map_launcher_block();
  try {
    if (!meeting_->has_met()) {
      meeting_->meet({[&](int peer) { check_set_up(peer); },
                      [&](int culprit, const std::string& message) {
                        if (place_.launcher_fd >= 0) abort(Errc::kTimeout, culprit, message);
                      }});
    }
    const std::vector<Introduction>& ranks = meeting_->ranks();
    require_one_host(ranks);
    if (place_.is_for_meeting_only) serve_store(ranks);
    links_ = connect_mesh(rank(), ranks, meeting_->listener(), meeting_->deadline(),
                          [&] { check_set_up(-1); });
    if (place_.launcher_fd < 0) share_control();
    if (place_.is_for_meeting_only) move_to_own_store(ranks);
    barrier();
  } catch (...) {
    meeting_->give_up();
  }
  meeting_.reset();
  place_.met_at = nullptr;  // it keeps the server of the meeting
  enter(Phase::kIdle, 0);
}

// Throws when it is known already that the group will not be.
void ShmControl::check_set_up(int peer) {
  if (is_interrupted()) {
    meeting_->fail_unmet(Errc::kAborted, "interrupted before every rank was there");
  }
  if (meeting_->has_met()) meeting_->require_nobody_gave_up();
  const WaitSite site{Phase::kSetup, 0, peer};
  if (place_.launcher_fd >= 0) check_alive(site);
  if (!parent().control) return;
  parent().control->look_for_dead_ranks();
  parent().control->check_alive(site);
}

// Under a name that nobody else has, and all ranks know.
void ShmControl::serve_store(const std::vector<Introduction>& ranks) {
  if (rank() != 0 || size() == 1) return;
  const Address address = Address::parse("unix:@switchyard-" + ranks[0].nonce);
  place_.server = StoreServer::start(address, "");
  require(place_.server != nullptr, Errc::kInternal, "group: the address {} is taken",
          address.text());
}

// Rank 0 has served it since before it gave out the control block.
void ShmControl::move_to_own_store(const std::vector<Introduction>& ranks) {
  if (size() == 1) return set_store(std::make_shared<HashStore>());
  const Address address = Address::parse("unix:@switchyard-" + ranks[0].nonce);
  place_.is_served_by_rank_0 = true;
  set_store(with_peer(
      rank(), 0, [&] { return std::make_shared<SocketStore>(address, "", timeout_ms(), true); }));
}

// Rank 0 makes the block and hands it out.
void ShmControl::share_control() {
  const Parcel parcel{0, ControlBlock::size_bytes(size())};
  if (rank() == 0) {
    const Fd memory = make_shared_memory("switchyard control", parcel.bytes);
    map_control(memory);
    for (int peer = 1; peer < size(); ++peer) {
      with_peer(rank(), peer, [&] {
        send_packet(links_[static_cast<std::size_t>(peer)].socket,
                    std::as_bytes(std::span(&parcel, 1)), memory.get(), meeting_->deadline());
      });
    }
    return;
  }
  Parcel got;
  std::optional<Fd> memory;
  while (!memory) {
    require(!meeting_->deadline().expired(), Errc::kTimeout,
            "group: no control block from rank 0 within {:.1f} s (rank {} of {})",
            static_cast<double>(timeout_ms()) * 1e-3, rank(), size());
    check_set_up(0);
    const int slice_ms = std::min(kSliceMs, meeting_->deadline().remaining_ms());
    memory = with_peer(rank(), 0, [&] {
      return receive_packet(links_[0].socket, std::as_writable_bytes(std::span(&got, 1)),
                            Deadline::after_ms(slice_ms));
    });
  }
  map_control(*memory);
}

int ShmControl::find_lost_peer() noexcept {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank() || links_.empty()) continue;
    if (!links_[static_cast<std::size_t>(peer)].is_dead() || has_left(peer)) continue;
    if (!place_.has_launcher) return peer;
    std::int64_t since = 0;
    if (lost_since_ns_.compare_exchange_strong(since, now_ns())) return -1;
    return now_ns() - since > kLauncherGraceNs ? peer : -1;
  }
  return -1;
}

}  // namespace switchyard
