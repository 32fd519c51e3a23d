// SPDX-License-Identifier: Apache-2.0
//
// split.cpp: ranks tell each other color and key, derive the subgroups from that, and those of one
// color make an engine of the same kind. How that went is compared over the parent, so that all
// ranks go on or all fail with the same words.

#include <poll.h>

#include <algorithm>
#include <charconv>

#include "core/fail.h"
#include "engine/engine.h"
#include "engine/meeting.h"
#include "engine/reason.h"

namespace switchyard {
namespace {

// What one rank passed.
struct Claim {
  int color = -1;
  int key = 0;
  int rank = 0;
};

Claim parse(const std::string& text, int rank) {
  Claim claim;
  claim.rank = rank;
  const char* const end = text.data() + text.size();
  const auto [after, error] = std::from_chars(text.data(), end, claim.color);
  require(error == std::errc{} && after != end &&
              std::from_chars(after + 1, end, claim.key).ec == std::errc{},
          Errc::kInternal, "split: rank {} wrote \"{}\", must be color and key", rank, text);
  return claim;
}

// Ranks of the parent, in the order of the subgroup.
std::vector<int> members_of(const std::vector<std::string>& texts, int color) {
  std::vector<Claim> claims;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const Claim claim = parse(texts[rank], static_cast<int>(rank));
    if (claim.color == color) claims.push_back(claim);
  }
  std::stable_sort(claims.begin(), claims.end(),
                   [](const Claim& a, const Claim& b) { return a.key < b.key; });
  std::vector<int> members;
  for (const Claim& claim : claims) members.push_back(claim.rank);
  return members;
}

std::string reason_of(const Error& error) {
  return fmt::format("a subgroup: {}", reason_for_others(error.what()));
}

// A subgroup knows it by another number; and our launcher may still be about to say why it died.
void name_dead_rank(Control& parent) {
  const Deadline end = Deadline::after_ms(500);
  for (parent.look_for_dead_ranks(); !parent.is_aborted() && !end.expired();) {
    poll(nullptr, 0, 10);
    parent.look_for_dead_ranks();
  }
}

// Collective. `failure`: why this rank has no subgroup, or nothing; not what it heard from a rank
// that says so itself.
void require_all_well(Control& control, const std::optional<Error>& failure) {
  const std::vector<std::string> texts = control.all_gather_text(
      {Phase::kSplit, "outcome"}, failure ? fmt::format("{} {}", static_cast<int>(failure->code()),
                                                        reason_for_others(failure->what()))
                                          : "");
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].empty()) continue;
    int code = static_cast<int>(Errc::kInternal);
    const char* const end = texts[rank].data() + texts[rank].size();
    const char* const after = std::from_chars(texts[rank].data(), end, code).ptr;
    fail(static_cast<Errc>(code), "split: rank {} of {}:{}", rank, control.size(),
         std::string(after, end));
  }
}

}  // namespace

std::shared_ptr<Engine> Engine::split(int color, int key) {
  return split(color, key, &Engine::make_subgroup);
}

std::shared_ptr<Engine> Engine::make_host_group() {
  const Control& all = control();
  if (has_windows() && all.host_size() == all.size()) return shared_from_this();
  return split(all.host_of(all.rank()), 0, &Engine::make_host_subgroup);
}

std::shared_ptr<Engine> Engine::split(int color, int key, Maker make) {
  Control& parent = control();
  const std::vector<int> members = members_of(
      parent.all_gather_text({Phase::kSplit, "colors"}, fmt::format("{} {}", color, key)), color);
  const std::uint64_t number = parent.num_gathers();
  const std::string name = fmt::format("split/{}/{}/", number, color);
  std::shared_ptr<Engine> engine;
  std::optional<Error> failure;
  std::optional<Error> heard;
  try {
    if (color >= 0) engine = (this->*make)(spec_of(members, name), name);
  } catch (const HeardError& error) {
    if (ends_the_group(error.code())) parent.abort(error.code(), -1, reason_of(error));
    parent.check_alive({Phase::kSplit, number, -1});
    heard = error;
  } catch (const Error& error) {
    if (error.code() == Errc::kPeerLost) name_dead_rank(parent);
    if (ends_the_group(error.code())) parent.abort(error.code(), -1, reason_of(error));
    parent.check_alive({Phase::kSplit, number, -1});
    failure = error;
  }
  require_all_well(parent, failure);
  if (heard) throw Error(*heard);
  return engine;
}

GroupSpec Engine::spec_of(const std::vector<int>& members, const std::string& name) {
  const Control& parent = control();
  GroupSpec spec;
  const auto own = std::find(members.begin(), members.end(), parent.rank());
  spec.rank = static_cast<int>(own - members.begin());
  spec.size = static_cast<int>(members.size());
  spec.timeout_ms = parent.timeout_ms();
  spec.store = parent.store_part(name);
  for (const int rank : members) spec.hosts.push_back(parent.host_of(rank));
  // It keeps the whole engine: a rank has not left a group whose subgroup it still has.
  spec.parent = {std::shared_ptr<Control>(shared_from_this(), &control()), members};
  return spec;
}

}  // namespace switchyard
