// SPDX-License-Identifier: Apache-2.0
//
// engine.cpp: what all engines share: the sleeping half of a wait, abort, barrier, and the words of
// the errors. A sleep is cut into slices; between two of them the rank looks for peers that died or
// left and for the end of its deadline. Before either becomes an error the caller looks at its
// condition once more, because a peer may have answered and then gone.

#include "engine/engine.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <optional>

#include "core/fail.h"
#include "transport/futex.h"

namespace switchyard {
namespace {

constexpr std::int64_t kSliceNs = kSliceMs * std::int64_t{1'000'000};
constexpr int kNumSpins = 4000;  // some 100 us
constexpr std::uint32_t kHere = 1;
constexpr std::uint32_t kLeft = 2;
constexpr const char* kIsGone = "its process is gone";
constexpr const char* kHasLeft = "it left the group";

int num_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
}

// The function that a user called, first word of a message.
const char* function_of(Phase phase) {
  switch (phase) {
    case Phase::kDispatchSend:
    case Phase::kDispatchReceive: return "dispatch";
    case Phase::kCombineSend:
    case Phase::kCombineReceive: return "combine";
    case Phase::kBarrier: return "barrier";
    case Phase::kIdle:
    case Phase::kSetup: break;
  }
  return "group";
}

std::string place_of(const RankLines& lines) {
  const auto phase = static_cast<Phase>(lines.phase.load(std::memory_order_relaxed));
  if (phase == Phase::kIdle) return "is idle";
  return fmt::format("last reached {}, call {}", name_of(phase),
                     lines.call.load(std::memory_order_relaxed));
}

}  // namespace

Engine::Engine(int rank, int size, std::int64_t timeout_ms, std::shared_ptr<Store> store)
    : rank_(rank),
      size_(size),
      timeout_ms_(timeout_ms),
      num_spins_(size <= num_cores() ? kNumSpins : 0),
      store_(std::move(store)) {}

void Engine::attach(ControlBlock control) {
  control_ = control;
  control_.lines(rank_).joined.store(kHere, std::memory_order_release);
}

void Engine::leave() noexcept {
  control_.lines(rank_).joined.store(kLeft, std::memory_order_release);
}

bool Engine::has_left(int peer) const noexcept {
  return control_.lines(peer).joined.load(std::memory_order_acquire) == kLeft;
}

void Engine::notify(int peer) noexcept { control_.ring(peer); }

void Engine::notify_all() noexcept {
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) control_.ring(peer);
  }
}

void Engine::enter(Phase phase, std::uint64_t call) noexcept {
  RankLines& lines = control_.lines(rank_);
  lines.call.store(call, std::memory_order_relaxed);
  lines.phase.store(static_cast<std::uint32_t>(phase), std::memory_order_relaxed);
}

Engine::WaitState::WaitState(std::int64_t timeout_ms)
    : deadline(Deadline::after_ms(timeout_ms)), next_look_ns(now_ns() + kSliceNs) {}

void Engine::sleep(const WaitSite& site, std::uint32_t seen, WaitState& state) {
  check_alive(site);
  const std::int64_t now = now_ns();
  if (now >= state.next_look_ns || state.deadline.expired()) {
    look_for_trouble(site, state);
    state.next_look_ns = now + kSliceNs;
    if (state.is_last_look) return;
  }
  const std::int64_t slice = std::min(state.next_look_ns - now, state.deadline.remaining_ns());
  RankLines& lines = control_.lines(rank_);
  lines.sleepers.fetch_add(1,
                           std::memory_order_seq_cst);  // pairs with the load in ControlBlock::ring
  futex_wait(lines.doorbell, seen, slice);
  lines.sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

void Engine::look_for_trouble(const WaitSite& site, WaitState& state) {
  const int dead = find_lost_peer();
  const bool is_left = site.peer >= 0 && has_left(site.peer);
  const bool is_over = state.deadline.expired();
  if (!state.is_last_look) {
    state.is_last_look = dead >= 0 || is_left || is_over;
    return;
  }
  if (dead >= 0) fail_lost(site, dead, kIsGone);
  if (is_left) fail_lost(site, site.peer, kHasLeft);
  if (is_over) fail_timeout(site);
  state.is_last_look = false;
}

void Engine::fail_lost(const WaitSite& site, int peer, const char* reason) {
  abort(Errc::kPeerLost, peer, reason);
  check_alive(site);  // in the words of the first cause, which may know more
  fail(Errc::kPeerLost, "{}: rank {} was lost ({}) while rank {} waited in {}, call {}",
       function_of(site.phase), peer, reason, rank_, name_of(site.phase), site.call);
}

void Engine::fail_timeout(const WaitSite& site) {
  int culprit = site.peer;
  for (int peer = 0; culprit < 0 && peer < size_; ++peer) {
    if (peer != rank_) culprit = peer;
  }
  const auto seconds = static_cast<double>(timeout_ms_) * 1e-3;
  const std::string place = place_of(control_.lines(culprit));
  abort(Errc::kTimeout, culprit,
        fmt::format("rank {} had no answer from rank {} within {:.1f} s in {}, call {}; rank {} {}",
                    rank_, culprit, seconds, name_of(site.phase), site.call, culprit, place));
  fail(Errc::kTimeout, "{}: no answer from rank {} within {:.1f} s (rank {} of {}, call {}); it {}",
       function_of(site.phase), culprit, seconds, rank_, size_, site.call, place);
}

bool Engine::abort(Errc code, int culprit, const std::string& reason) noexcept {
  return control_.abort(abort_code(code), culprit, reason.c_str());
}

bool Engine::is_aborted() const noexcept {
  return control_.abort_line().code.load(std::memory_order_acquire) != 0;
}

void Engine::look_for_lost_peers() noexcept {
  const int dead = find_lost_peer();
  if (dead >= 0) abort(Errc::kPeerLost, dead, kIsGone);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_ && has_left(peer)) abort(Errc::kPeerLost, peer, kHasLeft);
  }
}

void Engine::check_alive(const WaitSite& site) {
  const AbortLine& cause = control_.abort_line();
  const std::uint32_t published = cause.code.load(std::memory_order_acquire);
  if (published == 0) [[likely]]
    return;
  has_seen_abort_ = true;
  const Errc code = errc_of(published);
  const char* function = function_of(site.phase);
  const char* phase = name_of(site.phase);
  if (code == Errc::kPeerLost) {
    fail(code, "{}: rank {} was lost ({}) while rank {} waited in {}, call {}", function,
         cause.culprit, cause.reason, rank_, phase, site.call);
  }
  if (code == Errc::kTimeout) {
    fail(code, "{}: {} (rank {} of {} stopped in {}, call {})", function, cause.reason, rank_,
         size_, phase, site.call);
  }
  const std::string author = cause.culprit < 0 ? "" : fmt::format(" by rank {}", cause.culprit);
  fail(code, "{}: the group was aborted{}: {} (rank {} of {} stopped in {}, call {})", function,
       author, cause.reason, rank_, size_, phase, site.call);
}

std::vector<Fd> Engine::swap_descriptors(const Fd& /*own*/, std::size_t /*bytes*/) {
  fail(Errc::kNotSupported, "group: engine \"{}\" has no sockets to pass descriptors over", name());
}

void Engine::barrier() {
  const std::uint64_t number = ++num_barriers_;
  enter(Phase::kBarrier, number);
  check_alive({Phase::kBarrier, number, -1});
  control_.lines(rank_).barrier.store(number, std::memory_order_release);
  notify_all();
  for (int peer = 0; peer < size_; ++peer) {
    const RankLines& lines = control_.lines(peer);
    wait({Phase::kBarrier, number, peer},
         [&] { return lines.barrier.load(std::memory_order_acquire) >= number; });
  }
}

std::vector<std::string> Engine::all_gather_text(const std::string& text) {
  const std::uint64_t number = ++num_gathers_;
  enter(Phase::kSetup, number);
  check_alive({Phase::kSetup, number, -1});
  const auto key = [&](int rank) { return fmt::format("gather/{}/{}", number, rank); };
  put_to_store({Phase::kSetup, number, store_rank()}, key(rank_), text);
  std::vector<std::string> texts;
  for (int peer = 0; peer < size_; ++peer) {
    texts.push_back(peer == rank_ ? text : get_from_peer({Phase::kSetup, number, peer}, key(peer)));
  }
  barrier();  // nobody may leave, and take the store along, before all have read
  return texts;
}

// A store that is gone went with a rank or the launcher; the looks between slices say which.
std::string Engine::get_from_peer(const WaitSite& site, const std::string& key) {
  std::string text;
  wait_in_slices(site, [&](const Deadline& slice) {
    try {
      const std::optional<std::string> found = store_->get(key, slice);
      if (found) text = *found;
      return found.has_value();
    } catch (const Error& error) {
      if (error.code() != Errc::kPeerLost) throw;
      poll(nullptr, 0, slice.remaining_ms());
      return false;
    }
  });
  return text;
}

void Engine::put_to_store(const WaitSite& site, const std::string& key, const std::string& text) {
  wait_in_slices(site, [&](const Deadline& slice) {
    try {
      store_->set(key, text);
      return true;
    } catch (const Error& error) {
      if (error.code() == Errc::kTimeout) fail_timeout(site);
      if (error.code() != Errc::kPeerLost) throw;
      poll(nullptr, 0, slice.remaining_ms());
      return false;
    }
  });
}

void Engine::wait_in_slices(const WaitSite& site,
                            const std::function<bool(const Deadline&)>& attempt) {
  WaitState state(timeout_ms_);
  for (;;) {
    const int slice_ms = std::min(kSliceMs, state.deadline.remaining_ms());
    if (attempt(Deadline::after_ms(slice_ms))) return;
    check_alive(site);
    look_for_trouble(site, state);
  }
}

void Engine::agree_on_window(std::size_t bytes, const std::string& own_error) {
  const std::vector<std::string> notes =
      all_gather_text(own_error.empty() ? fmt::format("{}", bytes) : "!" + own_error);
  for (int peer = 0; peer < size_; ++peer) {
    const std::string& note = notes[static_cast<std::size_t>(peer)];
    require(note.empty() || note[0] != '!', Errc::kOutOfMemory, "window: rank {} of {}: {}", peer,
            size_, note.substr(1));
    require(note == notes[0], Errc::kInvalidArgument,
            "window: rank {} asks for {} bytes, but rank 0 for {}; sizes must be equal", peer, note,
            notes[0]);
  }
}

}  // namespace switchyard
