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

constexpr int kWithdrawnPollMs = 10;
constexpr int kOwnWordsMs = 10 * kSliceMs;  // a busy machine may let a store answer late
constexpr int kTellMs = 4 * kSliceMs;       // each asks once a slice, if the machine lets it
constexpr const char* kNoSign = "no sign of rank";
constexpr const char* kFailureKey = "failed";  // why the group will not be: a code and a message

std::string introduction_key(int rank) { return fmt::format("join/{}", rank); }

}  // namespace

ShmControl::ShmControl(GroupSpec spec, ShmMeeting meeting)
    : SharedControl(std::move(spec)),
      meeting_(std::move(meeting)),
      deadline_(Deadline::after_ms(timeout_ms())) {}

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
void ShmControl::map_launcher_block() {
  const int fd = meeting_.launcher_fd;
  const Fd memory(fcntl(fd, F_DUPFD_CLOEXEC, 3));
  if (!memory.has_value()) fail_errno("SWITCHYARD_CONTROL_FD", std::to_string(fd));
  fcntl(fd, F_SETFD, FD_CLOEXEC);  // it is for this process, not for its children
  map_control(memory);
}

void ShmControl::join() {
  if (meeting_.launcher_fd >= 0) map_launcher_block();
  auto [listener, socket] = listen_for_packets();
  try {
    const std::vector<Introduction> ranks = meet(socket);
    require_one_job(ranks);
    if (meeting_.is_for_meeting_only) serve_store(ranks);
    links_ = connect_mesh(rank(), ranks, listener, deadline_, [&] { check_set_up(-1); });
    if (meeting_.launcher_fd < 0) share_control();
    if (meeting_.is_for_meeting_only) move_to_own_store(ranks);
    barrier();
  } catch (...) {
    withdraw();
    throw;
  }
  enter(Phase::kIdle, 0);
}

// Throws when it is known already that the group will not be.
void ShmControl::check_set_up(int peer) {
  if (is_interrupted()) fail_unmet(Errc::kAborted, "interrupted before every rank was there");
  const WaitSite site{Phase::kSetup, 0, peer};
  if (meeting_.launcher_fd >= 0) check_alive(site);
  if (!parent().control) return;
  parent().control->look_for_dead_ranks();
  parent().control->check_alive(site);
}

std::optional<std::string> ShmControl::look_up(const std::string& key, int within_ms) {
  return with_store([&] { return store().get(key, Deadline::after_ms(within_ms)); });
}

// Each rank's introduction; or the error that names who is missing.
std::vector<Introduction> ShmControl::meet(const std::string& socket) {
  const std::string text = Introduction::of_this_process(size(), socket).text();
  if (meeting_.claims_ranks) require_own_place();
  with_store([&] { store().set(introduction_key(rank()), text); });
  own_text_ = text;
  std::vector<Introduction> ranks;
  for (int peer = 0; peer < size(); ++peer) ranks.push_back(await_introduction(peer));
  if (meeting_.claims_ranks) require_own_place();
  return ranks;
}

Introduction ShmControl::await_introduction(int peer) {
  for (;;) {
    check_set_up(peer);
    if (meeting_.claims_ranks) require_own_place();  // another may have come since
    const int slice_ms = std::min(kSliceMs, deadline_.remaining_ms());
    const std::string text = look_up(introduction_key(peer), slice_ms).value_or("");
    if (!text.empty()) {
      Introduction other = Introduction::parse(text);
      if (other.size == size()) return other;
      const auto [low, high] =
          std::minmax({std::pair(rank(), size()), std::pair(peer, other.size)});
      fail_for_all(Errc::kInvalidArgument,
                   fmt::format("rank {} says that there are {} ranks, but rank {} says {}",
                               low.first, low.second, high.first, high.second));
    }
    const std::string failure = look_up(kFailureKey, 0).value_or("");
    if (!failure.empty()) {
      const std::size_t space = failure.find(' ');
      if (meeting_.server) poll(nullptr, 0, kTellMs);  // others have still to see it
      fail_unmet(static_cast<Errc>(std::atoi(failure.c_str())), failure.substr(space + 1));
    }
    if (deadline_.expired()) require_nobody_missing(peer);
    poll(nullptr, 0, std::min(kWithdrawnPollMs, deadline_.remaining_ms()));  // it may be withdrawn
  }
}

// In this rank's place of the store there is nothing, or its own words.
void ShmControl::require_own_place() {
  const std::string text = look_up(introduction_key(rank()), 0).value_or("");
  if (text.empty() || text == own_text_) return;
  own_text_.clear();  // what is there now is another's: not to be withdrawn
  fail_for_all(Errc::kInvalidArgument,
               fmt::format("two processes say that they are rank {}, or the store is of an earlier "
                           "group; give each process its own number and each group a new store",
                           rank()));
}

// After a failure, so that the ranks may try again over the same store.
void ShmControl::withdraw() noexcept {
  if (!meeting_.claims_ranks || own_text_.empty()) return;
  try {
    store().set_within(introduction_key(rank()), "", kOwnWordsMs);
  } catch (const std::exception&) {  // the store went with whoever served it, or is stuck
  }
}

// Who still waits should learn why at once; the store may go with this rank.
void ShmControl::tell_failure(Errc code, const std::string& message) {
  if (!meeting_.server && !meeting_.claims_ranks) return;
  try {
    store().set_within(kFailureKey, fmt::format("{} {}", static_cast<int>(code), message),
                       kOwnWordsMs);
    poll(nullptr, 0, kTellMs);
    store().set_within(kFailureKey, "", kOwnWordsMs);
    if (meeting_.server) store().set(introduction_key(rank()), "");
  } catch (const Error& error) {  // what is wrong with the store is not the first cause
    if (error.code() == Errc::kTimeout) own_text_.clear();  // withdraw() would wait as long again
  }
}

void ShmControl::fail_unmet(Errc code, const std::string& message) {
  fail(code, "group: {} (rank {} of {}){}", message, rank(), size(),
       message.starts_with(kNoSign) ? "; did they start?" : "");
}

void ShmControl::fail_for_all(Errc code, const std::string& message) {
  tell_failure(code, message);
  fail_unmet(code, message);
}

void ShmControl::require_nobody_missing(int first) {
  // What this rank wrote itself is there, unless who serves the store is stuck.
  if (look_up(introduction_key(rank()), kOwnWordsMs).value_or("").empty()) {
    own_text_.clear();  // who is silent is told nothing
    constexpr const char* kSilent = "the store of this group does not answer";
    if (meeting_.launcher_fd >= 0) abort(Errc::kTimeout, -1, kSilent);
    fail_unmet(Errc::kTimeout, kSilent);
  }
  std::vector<std::int32_t> missing;
  for (int peer = first; peer < size(); ++peer) {
    if (look_up(introduction_key(peer), 0).value_or("").empty()) missing.push_back(peer);
  }
  if (missing.empty()) return;
  end_for_all(missing[0],
              fmt::format("{}{} {} within {:.1f} s", kNoSign, missing.size() == 1 ? "" : "s",
                          format_ranges(missing), static_cast<double>(timeout_ms()) * 1e-3));
}

// After the deadline: through the launcher's control block, if there is one, and the store.
void ShmControl::end_for_all(int culprit, const std::string& message) {
  if (meeting_.launcher_fd >= 0) abort(Errc::kTimeout, culprit, message);
  fail_for_all(Errc::kTimeout, message);
}

// Under a name that nobody else has, and all ranks know.
void ShmControl::serve_store(const std::vector<Introduction>& ranks) {
  if (rank() != 0 || size() == 1) return;
  const Address address = Address::parse("unix:@switchyard-" + ranks[0].nonce);
  meeting_.server = StoreServer::start(address, "");
  require(meeting_.server != nullptr, Errc::kInternal, "group: the address {} is taken",
          address.text());
}

// Rank 0 has served it since before it gave out the control block.
void ShmControl::move_to_own_store(const std::vector<Introduction>& ranks) {
  if (size() == 1) return set_store(std::make_shared<HashStore>());
  const Address address = Address::parse("unix:@switchyard-" + ranks[0].nonce);
  meeting_.is_served_by_rank_0 = true;
  set_store(
      with_store([&] { return std::make_shared<SocketStore>(address, "", timeout_ms(), true); }));
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
    if (!meeting_.has_launcher) return peer;
    std::int64_t since = 0;
    if (lost_since_ns_.compare_exchange_strong(since, now_ns())) return -1;
    return now_ns() - since > kLauncherGraceNs ? peer : -1;
  }
  return -1;
}

}  // namespace switchyard
