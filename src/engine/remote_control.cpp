// SPDX-License-Identifier: Apache-2.0

#include "engine/remote_control.h"

#include <algorithm>
#include <utility>

#include "core/fail.h"
#include "core/interrupt.h"
#include "engine/remote_exit.h"
#include "transport/control_block.h"
#include "transport/futex.h"
#include "transport/hash_store.h"
#include "transport/socket_store.h"

namespace switchyard {
namespace {

namespace members = member_protocol;

constexpr std::int64_t kMessageRestNs = 100'000;
// What a rank sent before it left may still be under way.
constexpr std::int64_t kLeaveGraceNs = 1'000'000'000;
constexpr std::int64_t kMinSilenceMs = 1500;

}  // namespace

struct RemoteControl::Parts {
  std::shared_ptr<StoreServer> server;
  std::string secret;
  std::unique_ptr<MemberLink> link;
};

RemoteControl::RemoteControl(GroupSpec spec, Parts parts)
    : Control(std::move(spec)),
      server_(std::move(parts.server)),
      secret_(std::move(parts.secret)),
      link_(std::move(parts.link)) {
  remote_exit::add(*this);
}

RemoteControl::~RemoteControl() {
  if (!process_.is_this_one()) return;  // not among the groups of a copy
  remote_exit::remove(*this);
  leave();
}

void RemoteControl::leave() noexcept {
  if (!process_.is_this_one()) return;
  if (listens_after_leaving_) {
    link_->leave_but_listen();
    remote_exit::listen(link_);
  } else {
    link_->leave();
  }
  if (server_) remote_exit::keep(std::move(server_), timeout_ms());
}

std::unique_ptr<RemoteControl> RemoteControl::join(GroupSpec spec, Meeting& meeting) {
  const auto check = [&](int peer) {
    if (is_interrupted()) {
      meeting.fail_unmet(Errc::kAborted, "interrupted before every rank was there");
    }
    if (!spec.parent.control) return;
    spec.parent.control->look_for_dead_ranks();
    spec.parent.control->check_alive({Phase::kSetup, 0, peer});
  };
  Parts parts;  // others may still need the server when this rank tells them why it gives up
  std::unique_ptr<RemoteControl> control;
  try {
    if (!meeting.has_met()) meeting.meet({check, [](int, const std::string&) {}});
    spec.hosts = hosts_of(meeting.ranks());
    const auto check_rank_0 = [&] {
      check(0);
      if (spec.rank != 0) meeting.require_there(0);
    };
    ServerAddress address = share_group_server(meeting, spec.rank, parts.server, check_rank_0);
    parts.secret = address.secret;
    const std::int64_t silence_ms = std::max(spec.timeout_ms / 2, kMinSilenceMs);
    parts.link =
        std::make_unique<MemberLink>(connect_to_group(address, meeting.deadline(), check_rank_0),
                                     spec.rank, spec.size, silence_ms);
    const Address reached = parts.link->server_address();
    spec.store = std::make_shared<SocketStore>(reached, address.secret, spec.timeout_ms, true);
    control.reset(new RemoteControl(std::move(spec), std::move(parts)));
    control->meeting_ = &meeting;
    control->barrier();
    control->meeting_ = nullptr;
  } catch (...) {
    meeting.give_up();
  }
  control->enter(Phase::kIdle, 0);
  return control;
}

bool RemoteControl::abort(Errc code, int culprit, const std::string& reason) noexcept {
  return link_->end(abort_code(code), culprit, reason);
}

void RemoteControl::enter(Phase phase, std::uint64_t call) noexcept {
  link_->enter({static_cast<std::uint32_t>(phase), call});
}

std::vector<std::string> RemoteControl::met_at() const {
  if (server_) return server_->met_at();
  const std::string own = link_->own_host();
  return own.empty() ? std::vector<std::string>() : std::vector{own};
}

std::uint32_t RemoteControl::bell() noexcept {
  return link_->bell().load(std::memory_order_seq_cst);
}

void RemoteControl::rest(std::uint32_t seen, std::int64_t ns) {
  if (meeting_ != nullptr) meeting_->require_nobody_gave_up();
  futex_wait(link_->bell(), seen, expects_messages_ ? std::min(ns, kMessageRestNs) : ns);
}

void RemoteControl::meet_all(std::uint64_t number) {
  link_->meet(number);
  wait({Phase::kBarrier, number, -1}, [&] { return link_->has_met(number); });
}

AbortCause RemoteControl::abort_cause() const {
  const members::End end = link_->cause();
  const bool is_rank = end.culprit >= 0 && end.culprit < size();
  return {errc_of(end.code), is_rank ? end.culprit : -1, end.reason};
}

bool RemoteControl::has_left(int peer) const noexcept {
  const std::int64_t left_ns = link_->left_ns(peer);
  return left_ns != 0 && now_ns() - left_ns > kLeaveGraceNs;
}

int RemoteControl::missing_peer(const WaitSite& site) {
  if (site.phase != Phase::kBarrier) return -1;
  const auto answer = link_->ask(members::Question::kWhoIsMissing, site.call);
  if (!answer || answer->size() != 8) return -1;
  const std::uint64_t peer = members::get_u64(*answer, 0);
  return peer < static_cast<std::uint64_t>(size()) ? static_cast<int>(peer) : -1;
}

std::string RemoteControl::place_of(int peer) const {
  const auto answer = link_->ask(members::Question::kPlaceOf, static_cast<std::uint64_t>(peer));
  const auto place = answer ? members::Place::parse(*answer) : std::nullopt;
  if (!place) return "has not said where it is";
  const auto phase = static_cast<Phase>(place->phase);
  if (phase == Phase::kIdle) return "is idle";
  return fmt::format("last reached {}, call {}", name_of(phase), place->call);
}

}  // namespace switchyard
