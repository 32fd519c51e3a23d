// SPDX-License-Identifier: Apache-2.0
//
// control.cpp: what all engines share: the sleeping half of a wait, gathers through the store, and
// the words of the errors. A sleep is cut into slices; between two of them the rank looks for peers
// that died or left and for the end of its deadline. Before either becomes an error the caller
// looks at its condition once more, because a peer may have answered and then gone.

#include "engine/control.h"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <optional>

#include "core/fail.h"
#include "core/interrupt.h"
#include "transport/prefix_store.h"

namespace switchyard {
namespace {

constexpr std::int64_t kSliceNs = kSliceMs * std::int64_t{1'000'000};
constexpr int kNumSpins = 4000;  // some 100 us
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
    case Phase::kSplit: return "split";
    case Phase::kExchange: return "exchange";
    case Phase::kIdle:
    case Phase::kSetup: break;
  }
  return "group";
}

// "in barrier, call 3", the end of "waited ..." and "stopped ...".
std::string where(const WaitSite& site) {
  if (site.phase == Phase::kIdle) return "between calls";
  return fmt::format("in {}, call {}", name_of(site.phase), site.call);
}

// The first line of what a rank publishes; without a line end where another version wrote it.
std::string tag_of(const Step& step) {
  return fmt::format("{} ({})", name_of(step.phase), step.name);
}

std::string tag_in(const std::string& text) { return text.substr(0, text.find('\n')); }

// Every rank sees all texts, so all of them throw this.
void require_same_step(const Step& step, const std::vector<std::string>& texts) {
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    require(
        tag_in(texts[rank]) == tag_in(texts[0]), Errc::kInvalidArgument,
        "{}: rank {} is in {}, but rank 0 in {}; every rank must make the same calls of a group "
        "in the same order",
        function_of(step.phase), rank, tag_in(texts[rank]), tag_in(texts[0]));
  }
}

std::string words_of(const AbortCause& why) {
  if (why.code == Errc::kTimeout) return why.reason;
  if (why.code == Errc::kPeerLost) {
    return why.culprit < 0 ? why.reason
                           : fmt::format("rank {} was lost ({})", why.culprit, why.reason);
  }
  const std::string author = why.culprit < 0 ? "" : fmt::format(" by rank {}", why.culprit);
  return fmt::format("the group was aborted{}: {}", author, why.reason);
}

}  // namespace

const char* name_of(Phase phase) noexcept {
  switch (phase) {
    case Phase::kIdle: return "idle";
    case Phase::kSetup: return "set-up";
    case Phase::kBarrier: return "barrier";
    case Phase::kDispatchSend: return "dispatch send";
    case Phase::kDispatchReceive: return "dispatch receive";
    case Phase::kCombineSend: return "combine send";
    case Phase::kCombineReceive: return "combine receive";
    case Phase::kSplit: return "split";
    case Phase::kExchange: return "set-up of an exchange";
  }
  return "unknown";
}

Control::Control(GroupSpec spec)
    : spec_(std::move(spec)), num_spins_(spec_.size <= num_cores() ? kNumSpins : 0) {
  if (spec_.hosts.empty()) spec_.hosts.assign(static_cast<std::size_t>(spec_.size), 0);
}

std::shared_ptr<Store> Control::store_part(const std::string& prefix) const {
  return std::make_shared<PrefixStore>(prefix, spec_.store);
}

int Control::host_of(int rank) const { return spec_.hosts[static_cast<std::size_t>(rank)]; }

int Control::host_rank() const {
  const auto own = spec_.hosts.begin() + rank();
  return static_cast<int>(std::count(spec_.hosts.begin(), own, *own));
}

int Control::host_size() const {
  return static_cast<int>(std::count(spec_.hosts.begin(), spec_.hosts.end(), host_of(rank())));
}

Control::WaitState::WaitState(std::int64_t timeout_ms)
    : deadline(Deadline::after_ms(timeout_ms)), next_look_ns(now_ns() + kSliceNs) {}

void Control::sleep(const WaitSite& site, std::uint32_t seen, WaitState& state) {
  check_alive(site);
  const std::int64_t now = now_ns();
  if (now >= state.next_look_ns || state.deadline.expired()) {
    look_for_trouble(site, state);
    state.next_look_ns = now + kSliceNs;
    if (state.is_last_look) return;
  }
  const std::int64_t slice = std::min(state.next_look_ns - now, state.deadline.remaining_ns());
  rest(seen, slice);
}

void Control::look_for_trouble(const WaitSite& site, WaitState& state) {
  if (is_interrupted()) {
    abort(Errc::kAborted, rank(), "it was interrupted");
    check_alive(site);
  }
  if (spec_.parent.control) {
    spec_.parent.control->look_for_dead_ranks();
    if (is_aborted()) cause();  // the parent's end rings the bells of this group
  }
  const int dead = find_lost_peer();
  const int absent = absent_peer(site);
  const bool is_left = absent >= 0;
  const bool is_over = state.deadline.expired();
  if (!state.is_last_look) {
    state.is_last_look = dead >= 0 || is_left || is_over;
    return;
  }
  if (dead >= 0) fail_lost(site, dead, kIsGone);
  if (is_left) fail_lost(site, absent, kHasLeft);
  if (is_over) fail_timeout(site);
  state.is_last_look = false;
}

// The rank that must act, if it has left; else -1.
int Control::absent_peer(const WaitSite& site) {
  int peer = site.peer;
  for (int other = 0; peer < 0 && other < size(); ++other) {
    if (other == rank() || !has_left(other)) continue;
    peer = missing_peer(site);
    if (peer < 0) return -1;
  }
  return peer >= 0 && has_left(peer) ? peer : -1;
}

void Control::fail_lost(const WaitSite& site, int peer, const char* reason) {
  abort(Errc::kPeerLost, peer, reason);
  check_alive(site);  // in the words of the first cause, which may know more
  fail(Errc::kPeerLost, "{}: rank {} was lost ({}) while rank {} waited {}",
       function_of(site.phase), peer, reason, rank(), where(site));
}

void Control::fail_timeout(const WaitSite& site) {
  int culprit = site.peer >= 0 ? site.peer : missing_peer(site);
  for (int peer = 0; culprit < 0 && peer < size(); ++peer) {
    if (peer != rank()) culprit = peer;
  }
  if (culprit < 0) culprit = rank();  // alone, it waits for itself
  const auto seconds = static_cast<double>(timeout_ms()) * 1e-3;
  const std::string place = place_of(culprit);
  abort(Errc::kTimeout, culprit,
        fmt::format("rank {} had no answer from rank {} within {:.1f} s in {}, call {}; rank {} {}",
                    rank(), culprit, seconds, name_of(site.phase), site.call, culprit, place));
  fail(Errc::kTimeout, "{}: no answer from rank {} within {:.1f} s (rank {} of {}, call {}); it {}",
       function_of(site.phase), culprit, seconds, rank(), size(), site.call, place);
}

void Control::look_for_dead_ranks() noexcept {
  if (spec_.parent.control) spec_.parent.control->look_for_dead_ranks();
  const int dead = find_lost_peer();
  if (dead >= 0) abort(Errc::kPeerLost, dead, kIsGone);
}

void Control::look_for_lost_peers() noexcept {
  look_for_dead_ranks();
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank() && has_left(peer)) abort(Errc::kPeerLost, peer, kHasLeft);
  }
}

void Control::fail_aborted(const WaitSite& site) {
  const AbortCause why = cause();
  for (Control* group = this; group != nullptr; group = group->spec_.parent.control.get()) {
    group->has_seen_abort_ = true;
  }
  const char* function = function_of(site.phase);
  const std::string place = where(site);
  if (why.code == Errc::kPeerLost) {
    fail(why.code, "{}: {} while rank {} waited {}", function, words_of(why), rank(), place);
  }
  fail(why.code, "{}: {} (rank {} of {} stopped {})", function, words_of(why), rank(), size(),
       place);
}

std::optional<Error> Control::error() {
  look_for_dead_ranks();
  if (!is_aborted()) return std::nullopt;
  const AbortCause why = cause();
  return Error(why.code, fmt::format("group: {} (rank {} of {})", words_of(why), rank(), size()));
}

// Ranks by their numbers in this group, where they have one.
AbortCause Control::cause_from_parent() const {
  AbortCause why = spec_.parent.control->cause();
  if (why.culprit < 0) return why;
  const std::vector<int>& ranks = spec_.parent.ranks;
  const auto own = std::find(ranks.begin(), ranks.end(), why.culprit);
  if (own != ranks.end() && why.code != Errc::kTimeout) {
    why.culprit = static_cast<int>(own - ranks.begin());
    return why;
  }
  if (why.code == Errc::kTimeout) {
    why.reason = "in the parent group, " + why.reason;
  } else if (why.code == Errc::kPeerLost) {
    why.reason = fmt::format("rank {} of the parent group was lost ({})", why.culprit, why.reason);
  } else {
    why.reason = fmt::format("rank {} of the parent group says: {}", why.culprit, why.reason);
  }
  why.culprit = -1;
  return why;
}

// What ended the parent becomes this group's own cause, unless it has one.
AbortCause Control::cause() {
  if (has_cause()) return abort_cause();
  const AbortCause why = cause_from_parent();
  abort(why.code, why.culprit, why.reason);
  return has_cause() ? abort_cause() : why;  // another rank may still be writing its cause
}

void Control::barrier() {
  const std::uint64_t number = ++num_barriers_;
  enter(Phase::kBarrier, number);
  check_alive({Phase::kBarrier, number, -1});
  meet_all(number);
}

void Control::meet_all(std::uint64_t number) {
  const auto key = [&](int rank) { return fmt::format("barrier/{}/{}", number, rank); };
  put_to_store({Phase::kBarrier, number, store_rank()}, key(rank()), "here");
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank()) get_from_peer({Phase::kBarrier, number, peer}, key(peer));
  }
}

std::vector<std::string> Control::all_gather_text(const Step& step, const std::string& text) {
  const Phase phase = step.phase;
  const std::uint64_t number = ++num_gathers_;
  enter(phase, number);
  check_alive({phase, number, -1});
  const auto key = [&](int rank) { return fmt::format("gather/{}/{}", number, rank); };
  const std::string tag = tag_of(step);
  const std::string own = tag + '\n' + text;
  put_to_store({phase, number, store_rank()}, key(rank()), own);
  std::vector<std::string> texts;
  for (int peer = 0; peer < size(); ++peer) {
    texts.push_back(peer == rank() ? own : get_from_peer({phase, number, peer}, key(peer)));
  }
  barrier();  // nobody may leave, and take the store along, before all have read
  require_same_step(step, texts);
  for (std::string& each : texts) each.erase(0, tag.size() + 1);
  return texts;
}

// A store that is gone went with a rank or the launcher; the looks between slices say which.
std::string Control::get_from_peer(const WaitSite& site, const std::string& key) {
  std::string text;
  wait_in_slices(site, [&](const Deadline& slice) {
    try {
      const std::optional<std::string> found = store().get(key, slice);
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

void Control::put_to_store(const WaitSite& site, const std::string& key, const std::string& text) {
  wait_in_slices(site, [&](const Deadline& slice) {
    try {
      store().set(key, text);
      return true;
    } catch (const Error& error) {
      if (error.code() == Errc::kTimeout) fail_timeout(site);
      if (error.code() != Errc::kPeerLost) throw;
      poll(nullptr, 0, slice.remaining_ms());
      return false;
    }
  });
}

void Control::wait_in_slices(const WaitSite& site,
                             const std::function<bool(const Deadline&)>& attempt) {
  WaitState state(timeout_ms());
  for (;;) {
    const int slice_ms = std::min(kSliceMs, state.deadline.remaining_ms());
    try {
      if (attempt(Deadline::after_ms(slice_ms))) return;
    } catch (const Error& error) {
      if (error.code() != Errc::kAborted || is_aborted()) throw;
      abort(Errc::kAborted, rank(), "it was interrupted");  // while a socket waited
      check_alive(site);
      throw;
    }
    check_alive(site);
    look_for_trouble(site, state);
  }
}

}  // namespace switchyard
