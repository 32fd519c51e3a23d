// SPDX-License-Identifier: Apache-2.0

#include "transport/roster.h"

#include <algorithm>

#include <fmt/format.h>

#include "switchyard/error.h"

#include "core/clock.h"
#include "transport/control_block.h"
#include "transport/env.h"

namespace switchyard {
namespace {

using namespace member_protocol;

std::string event_text(Event event, std::string_view content) {
  return std::string(1, static_cast<char>(event)) + std::string(content);
}

std::string number_text(std::uint64_t number) {
  std::string bytes;
  put_u64(bytes, number);
  return bytes;
}

}  // namespace

Roster::Member* Roster::find(int rank) {
  return rank >= 0 && static_cast<std::size_t>(rank) < members_.size()
             ? &members_[static_cast<std::size_t>(rank)]
             : nullptr;
}

bool Roster::is_anybody_here() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const Member& member) { return member.is_here; });
}

bool Roster::is_over() const {
  if (members_.empty()) return false;
  if (end_) return true;
  return !is_anybody_here() && (has_lost_awaited_ || !only_awaits_ends());
}

bool Roster::only_awaits_ends() const {
  if (end_ || has_lost_awaited_ || is_anybody_here()) return false;
  return std::any_of(members_.begin(), members_.end(),
                     [](const Member& member) { return member.is_end_awaited; });
}

bool Roster::join(const Join& join, std::int64_t now_ns) {
  if (join.size == 0 || join.size > kMaxRanks || join.rank >= join.size) return false;
  if (members_.empty()) {
    members_.resize(join.size);
    silence_ns_ = std::int64_t{join.silence_ms} * 1'000'000;
    last_look_ns_ = now_ns;
  }
  if (join.size != members_.size()) return false;
  Member& member = members_[join.rank];
  if (member.heard_ns != 0) return false;
  member.is_here = true;
  member.is_connected = true;
  member.heard_ns = now_ns;
  return true;
}

void Roster::greet(int rank) const {
  for (std::size_t other = 0; other < members_.size(); ++other) {
    if (!members_[other].has_left) continue;
    std::string content;
    put_u32(content, static_cast<std::uint32_t>(other));
    send_(rank, event_text(Event::kLeft, content));
  }
  if (end_) send_(rank, event_text(Event::kEnded, end_->text()));
}

void Roster::beat(int rank, const Place& place, std::int64_t now_ns) {
  Member* const member = find(rank);
  if (member == nullptr) return;
  member->heard_ns = now_ns;
  member->place = place;
}

void Roster::meet(int rank, std::uint64_t number) {
  Member* const member = find(rank);
  if (member == nullptr) return;
  member->met = std::max(member->met, number);
  std::uint64_t by_all = member->met;
  for (const Member& other : members_) by_all = std::min(by_all, other.met);
  if (by_all <= met_) return;
  met_ = by_all;
  tell_all(Event::kMet, number_text(by_all));
}

void Roster::end(const End& end) {
  if (end_) return;
  end_ = end;
  tell_all(Event::kEnded, end.text());
}

void Roster::leave(int rank, bool is_end_awaited) {
  Member* const member = find(rank);
  if (member == nullptr) return;
  member->is_end_awaited = is_end_awaited;
  if (member->has_left) return;
  member->is_here = false;
  member->has_left = true;
  std::string content;
  put_u32(content, static_cast<std::uint32_t>(rank));
  tell_all(Event::kLeft, content);
}

void Roster::lose(int rank) {
  Member* const member = find(rank);
  if (member == nullptr) return;
  member->is_connected = false;
  if (member->is_end_awaited) return lose_awaited(rank);
  if (!member->is_here) return;
  member->is_here = false;
  end({abort_code(Errc::kPeerLost), rank, -1, "its connection ended"});
}

void Roster::lose_awaited(int rank) {
  find(rank)->is_end_awaited = false;
  has_lost_awaited_ = true;
  std::string content;
  put_u32(content, static_cast<std::uint32_t>(rank));
  tell_all(Event::kLost, content);
}

void Roster::look(std::int64_t now_ns) {
  const std::int64_t away = now_ns - last_look_ns_;
  last_look_ns_ = now_ns;
  const bool was_stopped = away > Deadline::kStoppedNs;
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    Member& member = members_[rank];
    if (member.is_connected) send_(static_cast<int>(rank), event_text(Event::kAlive, {}));
    if (!member.is_here && !member.is_end_awaited) continue;
    if (was_stopped) member.heard_ns += away;
    if (now_ns - member.heard_ns <= silence_ns_) continue;
    if (member.is_end_awaited) {
      lose_awaited(static_cast<int>(rank));
      continue;
    }
    end({abort_code(Errc::kPeerLost), static_cast<int>(rank), -1,
         fmt::format("no sign of life for {:.1f} s: stopped, or its host is cut off",
                     static_cast<double>(silence_ns_) * 1e-9)});
  }
}

std::optional<std::string> Roster::answer(Question question, std::uint64_t argument) const {
  if (question == Question::kPlaceOf) {
    if (argument >= members_.size() || members_[argument].heard_ns == 0) return std::nullopt;
    return members_[argument].place.text();
  }
  if (question == Question::kWhoIsMissing) {
    for (std::size_t rank = 0; rank < members_.size(); ++rank) {
      if (members_[rank].met < argument) return number_text(rank);
    }
  }
  return std::nullopt;
}

void Roster::tell_all(Event event, std::string_view content) {
  const std::string text = event_text(event, content);
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    if (members_[rank].is_connected) send_(static_cast<int>(rank), text);
  }
}

}  // namespace switchyard
