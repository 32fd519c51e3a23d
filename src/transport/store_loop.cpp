// SPDX-License-Identifier: Apache-2.0

#include "transport/store_loop.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <system_error>
#include <utility>

#include "core/fail.h"
#include "core/log.h"

namespace switchyard {
namespace {

namespace protocol = store_protocol;
namespace members = member_protocol;

constexpr int kGoodbyeMs = 500;
constexpr std::size_t kMaxStoredBytes = std::size_t{256} << 20;
constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();

}  // namespace

StoreServer::Loop::~Loop() {
  is_stopping_ = true;
  wake();
  join_service_thread(thread_, process_);
}

void StoreServer::Loop::end_when_over() {
  ends_when_over_ = true;
  wake();
}

void StoreServer::Loop::end_when_idle() {
  Use expected = Use::kUsed;
  use_.compare_exchange_strong(expected, Use::kEndsWhenIdle);
  wake();
}

bool StoreServer::Loop::keep_serving() {
  if (!process_.is_this_one()) return false;
  Use expected = Use::kEndsWhenIdle;
  return use_.compare_exchange_strong(expected, Use::kUsed) || expected == Use::kUsed;
}

void StoreServer::Loop::start() {
  try {
    thread_ = start_service_thread([this] { run(); });
  } catch (const std::system_error& error) {
    fail(Errc::kSystem, "store: no thread to serve: {}", error.what());
  }
}

void StoreServer::Loop::wake() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

void StoreServer::Loop::run() {
  try {
    while (!is_to_end()) turn();
    if (!roster_.is_empty()) say_goodbye();
  } catch (const std::exception& error) {
    log(LogLevel::kError, "store", "the server ends: {}", error.what());
  }
  clients_.clear();
  listeners_.clear();
  spares_.clear();
  use_ = Use::kOver;
  has_ended_ = true;
}

void StoreServer::Loop::turn() {
  std::vector<pollfd> entries{{wake_.get(), POLLIN, 0}};
  const bool is_open = may_accept();
  for (const Fd& listener : listeners_) {
    entries.push_back({is_open ? listener.get() : -1, POLLIN, 0});
  }
  for (const Client& client : clients_) {
    const auto events = static_cast<short>(POLLIN | (client.session.has_unsent() ? POLLOUT : 0));
    entries.push_back({client.session.socket().get(), events, 0});
  }
  if (poll(entries.data(), entries.size(), poll_timeout_ms()) < 0 && errno != EINTR) {
    fail_errno("poll", "store");
  }
  std::uint64_t count = 0;
  if (entries[0].revents != 0 && read(wake_.get(), &count, sizeof(count)) > 0) return;
  std::size_t next = 1 + listeners_.size();
  for (Client& client : clients_) {
    const short events = entries[next++].revents;
    if ((events & POLLOUT) != 0) client.session.flush();
    if ((events & ~POLLOUT) != 0) receive(client);
  }
  for (std::size_t i = 0; i < listeners_.size(); ++i) {
    if (entries[1 + i].revents != 0) accept_clients(listeners_[i]);
  }
  end_waits();
  look_at_members();
  remove_gone();
  only_awaits_ends_ = roster_.only_awaits_ends();
}

bool StoreServer::Loop::is_to_end() {
  if (is_stopping_ || (ends_when_over_ && roster_.is_over())) return true;
  const auto is_known = [](const Client& client) { return client.session.is_known(); };
  if (use_ != Use::kEndsWhenIdle || std::ranges::any_of(clients_, is_known)) return false;
  Use expected = Use::kEndsWhenIdle;  // who turns to it now makes another server
  return use_.compare_exchange_strong(expected, Use::kOver);
}

int StoreServer::Loop::poll_timeout_ms() const {
  const std::int64_t now = now_ns();
  std::int64_t end = accept_from_ns_ > now ? accept_from_ns_ : kForever;
  if (!roster_.is_empty()) end = std::min(end, next_look_ns_);
  for (const Client& client : clients_) {
    end = std::min(end, client.session.hello_end_ns());
    for (const Waiter& waiter : client.waiters) end = std::min(end, waiter.end_ns);
  }
  if (end == kForever) return -1;
  return static_cast<int>(std::clamp<std::int64_t>((end - now) / 1'000'000 + 1, 0, 60'000));
}

void StoreServer::Loop::receive(Client& client) {
  client.session.receive();
  const bool was_known = client.session.is_known();
  while (const auto request = client.session.next_request(secret_)) serve(client, *request);
  if (!was_known && client.session.is_known()) remember_where(client.session.socket());
  const std::string_view refusal = client.session.take_refusal();
  if (!refusal.empty()) warn_of(client.session.peer(), refusal);
}

void StoreServer::Loop::serve(Client& client, const protocol::Request& request) {
  switch (request.operation) {
    case protocol::Operation::kHello:
    case protocol::Operation::kProof: return client.session.end();
    case protocol::Operation::kSet: return serve_set(client, request);
    case protocol::Operation::kGet: return serve_get(client, request);
    case protocol::Operation::kJoin: return serve_join(client, request);
    default: break;
  }
  if (client.rank < 0) return client.session.end();
  serve_member(client, request);
}

void StoreServer::Loop::serve_set(Client& client, const protocol::Request& request) {
  const auto old = values_.find(request.key);
  const std::size_t old_bytes = old == values_.end() ? 0 : old->first.size() + old->second.size();
  const std::size_t bytes = stored_bytes_ - old_bytes + request.key.size() + request.value.size();
  if (bytes > kMaxStoredBytes) {
    return client.session.reply({protocol::Status::kFull, request.id, {}});
  }
  stored_bytes_ = bytes;
  const std::string& value = values_[request.key] = request.value;
  client.session.reply({protocol::Status::kOk, request.id, {}});
  for (Client& other : clients_) {
    const auto is_answered = [&](const Waiter& waiter) {
      if (waiter.key != request.key) return false;
      other.session.reply({protocol::Status::kOk, waiter.id, value});
      return true;
    };
    std::erase_if(other.waiters, is_answered);
  }
}

void StoreServer::Loop::serve_get(Client& client, const protocol::Request& request) {
  const auto found = values_.find(request.key);
  if (found != values_.end()) {
    return client.session.reply({protocol::Status::kOk, request.id, found->second});
  }
  if (client.waiters.size() >= 1024) {  // our own clients have one
    return client.session.end();
  }
  client.waiters.push_back(
      {request.key, request.id, now_ns() + std::int64_t{request.wait_ms} * 1'000'000});
}

void StoreServer::Loop::serve_join(Client& client, const protocol::Request& request) {
  const auto join = members::Join::parse(request.value);
  if (!join || client.rank >= 0) return client.session.end();
  if (!roster_.join(*join, now_ns())) {
    return client.session.reply({protocol::Status::kRefused, request.id, {}});
  }
  client.rank = static_cast<int>(join->rank);
  client.session.reply({protocol::Status::kOk, request.id, {}});
  roster_.greet(client.rank);
}

void StoreServer::Loop::serve_member(Client& client, const protocol::Request& request) {
  switch (request.operation) {
    case protocol::Operation::kBeat:
      if (const auto place = members::Place::parse(request.value)) {
        return roster_.beat(client.rank, *place, now_ns());
      }
      break;
    case protocol::Operation::kMeet:
      if (request.value.size() != 8) break;
      return roster_.meet(client.rank, members::get_u64(request.value, 0));
    case protocol::Operation::kEnd:
      if (const auto end = members::End::parse(request.value)) return roster_.end(*end);
      break;
    case protocol::Operation::kLeave:
      if (request.value.size() != 1) break;
      return roster_.leave(client.rank, request.value[0] != 0);
    case protocol::Operation::kAsk: {
      if (request.value.size() != 12) break;
      const auto answer =
          roster_.answer(static_cast<members::Question>(members::get_u32(request.value, 0)),
                         members::get_u64(request.value, 4));
      return client.session.reply({answer ? protocol::Status::kOk : protocol::Status::kNothing,
                                   request.id, answer.value_or("")});
    }
    default: break;
  }
  client.session.end();
}

void StoreServer::Loop::send_event(int rank, const std::string& event) {
  for (Client& client : clients_) {
    if (client.rank == rank) client.session.reply({protocol::Status::kEvent, 0, event});
  }
}

void StoreServer::Loop::look_at_members() {
  const std::int64_t now = now_ns();
  if (roster_.is_empty() || now < next_look_ns_) return;
  roster_.look(now);
  next_look_ns_ = now + std::int64_t{members::kBeatMs} * 1'000'000;
}

// A loss may end further connections: those of clients that read nothing. The next turn has them.
void StoreServer::Loop::remove_gone() {
  for (Client& client : clients_) {
    if (client.session.is_gone()) roster_.lose(std::exchange(client.rank, -1));
  }
  clients_.remove_if(
      [](const Client& client) { return client.session.is_gone() && client.rank < 0; });
  take_spares_back();
}

// What was sent to members should arrive: with data of theirs unread, closing would discard it.
void StoreServer::Loop::say_goodbye() {
  const Deadline deadline = Deadline::after_ms(kGoodbyeMs);
  clients_.remove_if([](const Client& client) { return client.rank < 0; });
  for (Client& client : clients_) {
    client.session.flush();
    shutdown(client.session.socket().get(), SHUT_WR);
  }
  while (!clients_.empty() && !deadline.expired()) {
    std::vector<pollfd> entries;
    for (const Client& client : clients_)
      entries.push_back({client.session.socket().get(), POLLIN, 0});
    if (poll(entries.data(), entries.size(), deadline.remaining_ms()) <= 0) return;
    std::size_t next = 0;
    for (Client& client : clients_) {
      if (entries[next++].revents != 0) client.session.discard();
    }
    clients_.remove_if([](const Client& client) { return client.session.is_gone(); });
  }
}

// Ends gets that timed out, and clients that never said hello.
void StoreServer::Loop::end_waits() {
  const std::int64_t now = now_ns();
  for (Client& client : clients_) {
    if (now >= client.session.hello_end_ns()) client.session.end();
    std::erase_if(client.waiters, [&](const Waiter& waiter) {
      if (now < waiter.end_ns) return false;
      client.session.reply({protocol::Status::kNothing, waiter.id, {}});
      return true;
    });
  }
}

}  // namespace switchyard
