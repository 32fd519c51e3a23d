// SPDX-License-Identifier: Apache-2.0
//
// shm_control.cpp: how processes become a group. Through the store each rank says where it listens;
// each two ranks then connect a Unix packet socket; over it travel the descriptors of the control
// block (unless our launcher made it) and later of windows. P ranks cost P * (P - 1) / 2 sockets.

#include "engine/shm_control.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <utility>

#include "core/fail.h"

namespace switchyard {
namespace {

constexpr std::int64_t kLauncherGraceNs = 250'000'000;  // the launcher knows why a rank died

constexpr int kWithdrawnPollMs = 10;
constexpr char kFailed = '!';  // in place of an introduction: why the group will not be

std::string introduction_key(int rank) { return fmt::format("join/{}", rank); }

}  // namespace

ShmControl::ShmControl(const JoinRequest& request, StoreAccess access)
    : SharedControl({request.ranks.rank, request.ranks.size, request.timeout_ms, access.store}),
      server_(std::move(access.server)),
      deadline_(Deadline::after_ms(request.timeout_ms)),
      is_served_by_rank_0_(request.control_fd < 0) {}

ShmControl::~ShmControl() {
  if (control_memory_.data() != nullptr) leave();
}

void ShmControl::map_control(const Fd& memory) {
  const std::size_t bytes = ControlBlock::size_bytes(size());
  check_shared_memory(memory, bytes);
  control_memory_ = Mapping(memory, bytes);
  attach(ControlBlock(control_memory_.data(), size()));
  enter(Phase::kSetup, 0);
}

// With our launcher the control block is there first: a rank that dies meanwhile ends the set-up.
void ShmControl::join(int launcher_fd) {
  if (launcher_fd >= 0) {
    const Fd memory(fcntl(launcher_fd, F_DUPFD_CLOEXEC, 3));
    if (!memory.has_value()) fail_errno("SWITCHYARD_CONTROL_FD", std::to_string(launcher_fd));
    fcntl(launcher_fd, F_SETFD, FD_CLOEXEC);  // it is for this process, not for its children
    map_control(memory);
    has_launcher_ = true;
  }
  auto [listener, socket] = listen_for_packets();
  const std::vector<Introduction> ranks = meet(socket);
  require_one_job(ranks);
  const auto check = [&] {
    if (has_launcher_) check_alive({Phase::kSetup, 0, -1});
  };
  links_ = connect_mesh(rank(), ranks, listener, deadline_, check);
  if (!has_launcher_) share_control();
  barrier();
  enter(Phase::kIdle, 0);
}

std::optional<std::string> ShmControl::look_up(const std::string& key, int within_ms) {
  return with_store([&] { return store().get(key, Deadline::after_ms(within_ms)); });
}

// Each rank's introduction; or the error that names who is missing.
std::vector<Introduction> ShmControl::meet(const std::string& socket) {
  const std::string own = Introduction::of_this_process(size(), socket).text();
  with_store([&] { store().set(introduction_key(rank()), own); });
  std::vector<Introduction> ranks;
  for (int peer = 0; peer < size(); ++peer) {
    std::optional<std::string> text;
    while (!text) {
      if (has_launcher_) check_alive({Phase::kSetup, 0, peer});
      const int slice_ms = std::min(kSliceMs, deadline_.remaining_ms());
      text = look_up(introduction_key(peer), slice_ms);
      if (text && text->empty()) {  // withdrawn
        text.reset();
        poll(nullptr, 0, std::min(kWithdrawnPollMs, slice_ms));
      }
      if (text && text->front() == kFailed) fail_unmet(text->substr(1));
      if (text || !deadline_.expired()) continue;
      std::vector<int> missing;
      for (int other = peer; other < size(); ++other) {
        if (look_up(introduction_key(other), 0).value_or("").empty()) missing.push_back(other);
      }
      if (!missing.empty()) fail_missing(missing);
    }
    ranks.push_back(Introduction::parse(*text));
  }
  return ranks;
}

// The store goes with rank 0: who still waits should learn whom it missed, not that it is gone.
void ShmControl::tell_in_place_of(const std::vector<int>& missing, const std::string& message) {
  for (const int peer : missing) store().set(introduction_key(peer), kFailed + message);
  poll(nullptr, 0, 2 * kSliceMs);  // each asks at least once a slice
  for (const int peer : missing) store().set(introduction_key(peer), "");
  store().set(introduction_key(rank()), "");
}

void ShmControl::fail_unmet(const std::string& message) {
  fail(Errc::kTimeout, "group: {} (rank {} of {}); did they start?", message, rank(), size());
}

void ShmControl::fail_missing(const std::vector<int>& missing) {
  const std::string message =
      fmt::format("no sign of rank{} {} within {:.1f} s", missing.size() == 1 ? "" : "s",
                  fmt::join(missing, ", "), static_cast<double>(timeout_ms()) * 1e-3);
  if (has_launcher_) abort(Errc::kTimeout, missing[0], message);
  if (server_) tell_in_place_of(missing, message);
  fail_unmet(message);
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
                    std::as_bytes(std::span(&parcel, 1)), memory.get(), deadline_);
      });
    }
    return;
  }
  Parcel got;
  const std::optional<Fd> memory = with_peer(rank(), 0, [&] {
    return receive_packet(links_[0].socket, std::as_writable_bytes(std::span(&got, 1)), deadline_);
  });
  require(memory.has_value(), Errc::kTimeout,
          "group: no control block from rank 0 within {:.1f} s (rank {} of {})",
          static_cast<double>(timeout_ms()) * 1e-3, rank(), size());
  map_control(*memory);
}

int ShmControl::find_lost_peer() noexcept {
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank() || links_.empty()) continue;
    if (!links_[static_cast<std::size_t>(peer)].is_dead() || has_left(peer)) continue;
    if (!has_launcher_) return peer;
    std::int64_t since = 0;
    if (lost_since_ns_.compare_exchange_strong(since, now_ns())) return -1;
    return now_ns() - since > kLauncherGraceNs ? peer : -1;
  }
  return -1;
}

}  // namespace switchyard
