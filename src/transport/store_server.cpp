// SPDX-License-Identifier: Apache-2.0

#include "transport/store_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <limits>
#include <list>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/fail.h"
#include "core/log.h"
#include "core/service_thread.h"
#include "transport/roster.h"
#include "transport/secret.h"
#include "transport/store_session.h"

namespace switchyard {
namespace {

namespace protocol = store_protocol;
namespace members = member_protocol;

constexpr int kGoodbyeMs = 500;
constexpr std::int64_t kAcceptPauseNs = 100'000'000;  // after accept ran out of descriptors
constexpr std::size_t kMaxClients = 8192;
constexpr std::size_t kMaxStoredBytes = std::size_t{256} << 20;
constexpr int kMaxWarnings = 8;  // of strangers; a port scan must not fill the log
constexpr std::int64_t kForever = std::numeric_limits<std::int64_t>::max();

Fd duplicate(const Fd& fd) { return Fd(fcntl(fd.get(), F_DUPFD_CLOEXEC, 3)); }

}  // namespace

class StoreServer::Loop {
  // A get request whose key does not exist yet.
  struct Waiter {
    std::string key;
    std::uint32_t id = 0;
    std::int64_t end_ns = 0;
  };

  struct Client {
    StoreSession session;
    std::vector<Waiter> waiters{};
    int rank = -1;  // of the group whose server this is, once it has joined
  };

 public:
  Loop(Fd listener, Fd wake, std::string secret)
      : listener_(std::move(listener)),
        wake_(std::move(wake)),
        spare_(duplicate(wake_)),
        secret_(std::move(secret)) {
    if (!spare_.has_value()) fail_errno("dup", "store");
  }
  ~Loop() {
    is_stopping_ = true;
    wake();
    join_service_thread(thread_, process_);
  }

  void start();
  void end_when_over() {
    ends_when_over_ = true;
    wake();
  }
  bool has_ended() const { return has_ended_; }
  bool only_awaits_ends() const { return only_awaits_ends_; }

 private:
  void wake();
  void run();
  void turn();
  bool is_to_end() const { return is_stopping_ || (ends_when_over_ && roster_.is_over()); }
  int poll_timeout_ms() const;
  void accept_clients();
  void admit(Fd socket, bool is_turned_away = false);
  bool lend_spare();
  void take_spare_back();
  void warn_of(const std::string& stranger, std::string_view what);
  void receive(Client& client);
  void serve(Client& client, const protocol::Request& request);
  void serve_set(Client& client, const protocol::Request& request);
  void serve_get(Client& client, const protocol::Request& request);
  void serve_join(Client& client, const protocol::Request& request);
  void serve_member(Client& client, const protocol::Request& request);
  void send_event(int rank, const std::string& event);
  void look_at_members();
  void remove_gone();
  void end_waits();
  void say_goodbye();

  Fd listener_;
  Fd wake_;   // eventfd
  Fd spare_;  // given up to tell a client that there is no other
  std::string secret_;
  std::list<Client> clients_;
  std::unordered_map<std::string, std::string> values_;
  std::size_t stored_bytes_ = 0;
  std::int64_t accept_from_ns_ = 0;
  int num_warnings_ = 0;
  Roster roster_{[this](int rank, const std::string& event) { send_event(rank, event); }};
  std::int64_t next_look_ns_ = 0;  // at the members
  std::atomic<bool> is_stopping_ = false;
  std::atomic<bool> ends_when_over_ = false;
  std::atomic<bool> has_ended_ = false;
  std::atomic<bool> only_awaits_ends_ = false;
  OwnProcess process_;
  std::thread thread_;
};

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
  listener_.reset();
  has_ended_ = true;
}

void StoreServer::Loop::turn() {
  const bool may_accept = clients_.size() < kMaxClients && now_ns() >= accept_from_ns_;
  std::vector<pollfd> entries{{wake_.get(), POLLIN, 0},
                              {may_accept ? listener_.get() : -1, POLLIN, 0}};
  for (const Client& client : clients_) {
    const auto events = static_cast<short>(POLLIN | (client.session.has_unsent() ? POLLOUT : 0));
    entries.push_back({client.session.socket().get(), events, 0});
  }
  if (poll(entries.data(), entries.size(), poll_timeout_ms()) < 0 && errno != EINTR) {
    fail_errno("poll", "store");
  }
  std::uint64_t count = 0;
  if (entries[0].revents != 0 && read(wake_.get(), &count, sizeof(count)) > 0) return;
  std::size_t next = 2;
  for (Client& client : clients_) {
    const short events = entries[next++].revents;
    if ((events & POLLOUT) != 0) client.session.flush();
    if ((events & ~POLLOUT) != 0) receive(client);
  }
  end_waits();
  look_at_members();
  remove_gone();
  only_awaits_ends_ = roster_.only_awaits_ends();
  if (entries[1].revents != 0) accept_clients();
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

void StoreServer::Loop::accept_clients() {
  while (clients_.size() < kMaxClients) {
    Fd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.has_value()) {
      admit(std::move(socket));
      continue;
    }
    const int error = errno;
    if (error == ECONNABORTED) continue;
    if ((error == EMFILE || error == ENFILE) && lend_spare()) continue;
    if (!is_transient(error)) {
      log(LogLevel::kWarn, "store", "accept: errno {}; pauses", error);
      accept_from_ns_ = now_ns() + kAcceptPauseNs;
    }
    return;
  }
}

// Without descriptors, one client at a time is told so, in place of a wait that ends with its
// timeout. False when that is under way.
bool StoreServer::Loop::lend_spare() {
  if (!spare_.has_value()) return false;
  spare_.reset();
  Fd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!socket.has_value()) {
    spare_ = duplicate(wake_);
    return false;
  }
  admit(std::move(socket), true);
  return true;
}

void StoreServer::Loop::take_spare_back() {
  if (spare_.has_value()) return;
  const bool is_lent = std::any_of(clients_.begin(), clients_.end(), [](const Client& client) {
    return client.session.is_turned_away();
  });
  if (!is_lent) spare_ = duplicate(wake_);
}

void StoreServer::Loop::admit(Fd socket, bool is_turned_away) {
  const std::optional<PeerIdentity> identity = peer_identity(socket);
  std::string peer = peer_name(socket);
  if (identity && identity->uid != geteuid()) {
    return warn_of(peer, fmt::format("is of user {}", identity->uid));
  }
  clients_.push_back({StoreSession(std::move(socket), std::move(peer))});
  if (is_turned_away) clients_.back().session.turn_away();
}

void StoreServer::Loop::warn_of(const std::string& stranger, std::string_view what) {
  if (num_warnings_ > kMaxWarnings) return;
  const bool is_last = num_warnings_++ == kMaxWarnings;
  log(LogLevel::kWarn, "store", "refuses {}, which {}{}", stranger, what,
      is_last ? "; says no more of others" : "");
}

void StoreServer::Loop::receive(Client& client) {
  client.session.receive();
  while (const auto request = client.session.next_request(secret_)) serve(client, *request);
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
  take_spare_back();
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

StoreServer::StoreServer(Address address, std::unique_ptr<Loop> loop)
    : address_(std::move(address)), loop_(std::move(loop)) {}

StoreServer::~StoreServer() = default;

void StoreServer::end_when_over() { loop_->end_when_over(); }
bool StoreServer::has_ended() const { return loop_->has_ended(); }
bool StoreServer::only_awaits_ends() const { return loop_->only_awaits_ends(); }

std::unique_ptr<StoreServer> StoreServer::start(const Address& address, std::string secret) {
  require_secret(address, secret);
  bool is_taken = false;
  Fd listener = listen_on(address, &is_taken);
  if (is_taken) return nullptr;
  const Address bound = bound_address(listener, address);
  Fd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.has_value()) fail_errno("eventfd", "store");
  auto loop = std::make_unique<Loop>(std::move(listener), std::move(wake), std::move(secret));
  loop->start();
  return std::unique_ptr<StoreServer>(new StoreServer(bound, std::move(loop)));
}

}  // namespace switchyard
