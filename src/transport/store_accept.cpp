// SPDX-License-Identifier: Apache-2.0
//
// store_accept.cpp: how a StoreServer lets clients in. Until a client has proved that it has the
// secret it is a stranger: however many come, they have few of the process's descriptors, and a
// client that speaks is let in past those that do not.

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "core/fail.h"
#include "core/log.h"
#include "transport/raw_socket.h"
#include "transport/store_loop.h"

namespace switchyard {
namespace {

constexpr std::int64_t kAcceptPauseNs = 100'000'000;  // after accept ran out of descriptors
constexpr std::int64_t kHandshakeNs = 100'000'000;    // for a client that has begun to speak
constexpr std::int64_t kYoungNs = 1'000'000'000;      // a rank of a large group may be so late
constexpr std::size_t kMaxClients = 8192;
constexpr std::size_t kNumSpares = 3;
constexpr int kMaxWarnings = 8;  // of strangers; a port scan must not fill the log

Fd duplicate_of(const Fd& fd) { return Fd(fcntl(fd.get(), F_DUPFD_CLOEXEC, 3)); }

Fd accept_from(const Fd& listener) {
  return Fd(accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

// An eighth of the descriptors that this process may have.
std::size_t max_strangers() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) limit.rlim_cur = 1024;
  return static_cast<std::size_t>(std::clamp<rlim_t>(limit.rlim_cur / 8, 8, 1024));
}

}  // namespace

StoreServer::Loop::Loop(std::vector<Fd> listeners, Fd wake, std::string secret)
    : listeners_(std::move(listeners)),
      wake_(std::move(wake)),
      secret_(std::move(secret)),
      max_strangers_(max_strangers()) {
  take_spares_back();
  if (spares_.empty()) fail_errno("dup", "store");
}

bool StoreServer::Loop::may_accept() const {
  return clients_.size() < kMaxClients && now_ns() >= accept_from_ns_;
}

// Few at a time, so that those who are in are served meanwhile.
void StoreServer::Loop::accept_clients(const Fd& listener) {
  for (std::size_t i = 0; i < max_strangers_ && may_accept() && make_room_for_stranger(); ++i) {
    Fd socket = accept_from(listener);
    if (socket.has_value()) {
      admit(std::move(socket));
      continue;
    }
    const int error = errno;
    if (error == ECONNABORTED) continue;
    const bool is_short = error == EMFILE || error == ENFILE;
    if (is_short && (drop_stranger(true) || lend_spare(listener))) continue;
    if (!is_transient(error)) pause_after(error);
    return;
  }
}

// False when every stranger is in the middle of its handshake: who comes waits a moment.
bool StoreServer::Loop::make_room_for_stranger() {
  const auto is_stranger = [](const Client& one) { return !one.session.is_known(); };
  const auto count = static_cast<std::size_t>(std::ranges::count_if(clients_, is_stranger));
  if (count < max_strangers_ || drop_stranger(true) || drop_stranger(false)) return true;
  accept_from_ns_ = now_ns() + kHandshakeNs / 4;
  return false;
}

// The oldest one, of those that have said nothing or of those that have said hello long ago.
bool StoreServer::Loop::drop_stranger(bool is_silent) {
  const std::int64_t before_ns = now_ns() - (is_silent ? 0 : kHandshakeNs);
  const auto found = std::ranges::find_if(clients_, [&](const Client& one) {
    return !one.session.is_known() && !one.session.is_turned_away() &&
           one.session.is_silent() == is_silent && one.session.since_ns() <= before_ns;
  });
  if (found == clients_.end()) return false;
  if (found->session.since_ns() <= now_ns() - kYoungNs) {
    warn_of(found->session.peer(), "has not shaken hands while others came");
  }
  clients_.erase(found);
  return true;
}

void StoreServer::Loop::pause_after(int error) {
  if (num_pauses_++ < kMaxWarnings) {
    log(LogLevel::kWarn, "store", "accept: {}; pauses", std::system_category().message(error));
  }
  accept_from_ns_ = now_ns() + kAcceptPauseNs;
}

// Without descriptors, one client at a time is told so, in place of a wait that ends with its
// timeout. False when that is under way. Another thread may take the descriptor that is given up;
// then the next one is.
bool StoreServer::Loop::lend_spare(const Fd& listener) {
  if (has_lent()) return false;
  while (!spares_.empty()) {
    spares_.pop_back();
    Fd socket = accept_from(listener);
    if (!socket.has_value()) continue;
    admit(std::move(socket), true);
    return true;
  }
  return false;
}

bool StoreServer::Loop::has_lent() const {
  return std::ranges::any_of(clients_,
                             [](const Client& client) { return client.session.is_turned_away(); });
}

void StoreServer::Loop::take_spares_back() {
  while (spares_.size() < kNumSpares && !has_lent()) {
    Fd spare = duplicate_of(wake_);
    if (!spare.has_value()) return;
    spares_.push_back(std::move(spare));
  }
}

// What a client has said already is read at once.
void StoreServer::Loop::admit(Fd socket, bool is_turned_away) {
  const std::optional<PeerIdentity> identity = peer_identity(socket);
  std::string peer = peer_name(socket);
  if (identity && identity->uid != geteuid()) {
    return warn_of(peer, fmt::format("is of user {}", identity->uid));
  }
  clients_.push_back({StoreSession(std::move(socket), std::move(peer))});
  if (is_turned_away) clients_.back().session.turn_away();
  receive(clients_.back());
}

void StoreServer::Loop::warn_of(const std::string& stranger, std::string_view what) {
  if (num_warnings_ > kMaxWarnings) return;
  const bool is_last = num_warnings_++ == kMaxWarnings;
  log(LogLevel::kWarn, "store", "refuses {}, which {}{}", stranger, what,
      is_last ? "; says no more of others" : "");
}

void StoreServer::Loop::remember_where(const Fd& client) {
  const std::string host = RawAddress::of_own_end(client).host_elsewhere();
  if (host.empty()) return;
  const std::lock_guard lock(met_mutex_);
  met_at_.insert(host);
}

std::vector<std::string> StoreServer::Loop::met_at() const {
  const std::lock_guard lock(met_mutex_);
  return {met_at_.begin(), met_at_.end()};
}

}  // namespace switchyard
