// SPDX-License-Identifier: Apache-2.0

#include "transport/member_link.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>

#include "core/fail.h"
#include "transport/control_block.h"
#include "transport/futex.h"
#include "transport/raw_socket.h"

namespace switchyard {
namespace {

using namespace member_protocol;
using store_protocol::Operation;

constexpr std::int64_t kBeatNs = std::int64_t{kBeatMs} * 1'000'000;
constexpr std::chrono::milliseconds kAnswerTime{500};  // of the server, to a question or an end
constexpr int kGoodbyeMs = 500;
constexpr int kServer = 0;  // the rank that runs the server

std::string number_text(std::uint64_t number) {
  std::string bytes;
  put_u64(bytes, number);
  return bytes;
}

std::string leave_text(bool is_end_awaited) { return {is_end_awaited ? '\1' : '\0'}; }

}  // namespace

MemberLink::MemberLink(StoreConnection connection, int rank, int size, std::int64_t silence_ms)
    : rank_(rank),
      silence_ns_(silence_ms * 1'000'000),
      connection_(std::move(connection)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      left_ns_(static_cast<std::size_t>(size)) {
  if (!wake_.has_value()) fail_errno("eventfd", "group");
  const Join join{static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(size),
                  static_cast<std::uint32_t>(silence_ms)};
  const auto reply =
      connection_.ask({Operation::kJoin, 0, 0, {}, join.text()}, Deadline::after_ms(silence_ms));
  require(reply.has_value(), Errc::kTimeout, "group: the server of the group does not answer");
  require(reply->status == store_protocol::Status::kOk, Errc::kInvalidArgument,
          "group: the server of the group refuses rank {} of {}; give each process its own number",
          rank, size);
  received_ = connection_.take_received();
  heard_ns_ = now_ns();
  try {
    thread_ = start_service_thread([this] { run(); });
  } catch (const std::system_error& error) {
    fail(Errc::kSystem, "group: no thread to stay in touch with its server: {}", error.what());
  }
}

MemberLink::~MemberLink() { leave(); }

void MemberLink::leave() noexcept {
  if (is_leaving_.exchange(true)) return;
  is_listening_ = false;
  if (!process_.is_this_one()) {  // the rank itself stays
    is_over_ = true;
    return join_service_thread(thread_, process_);
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
  join_service_thread(thread_, process_);
  {
    const std::lock_guard lock(mutex_);
    unsent_ += encode(store_protocol::Request{Operation::kLeave, 0, 0, {}, leave_text(false)});
  }
  say_goodbye();
  is_over_ = true;
}

void MemberLink::leave_but_listen() noexcept {
  if (!process_.is_this_one()) return;
  is_listening_ = true;
  send(Operation::kLeave, leave_text(true));
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kAnswerTime, [&] { return is_over_ || left_ns(rank_) != 0; });
}

void MemberLink::be_done() noexcept {
  if (!process_.is_this_one() || !is_listening_.exchange(false)) return;
  send(Operation::kLeave, leave_text(false));
}

std::string MemberLink::own_host() const {
  return RawAddress::of_own_end(connection_.socket()).host_elsewhere();
}

void MemberLink::enter(const Place& place) noexcept {
  const std::lock_guard lock(mutex_);
  place_ = place;
}

void MemberLink::meet(std::uint64_t number) noexcept {
  send(Operation::kMeet, number_text(number));
}

bool MemberLink::end(std::uint32_t code, int culprit, const std::string& reason) noexcept {
  if (has_ended()) return false;
  const End own{code, culprit, rank_, reason};
  send(Operation::kEnd, own.text());
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, kAnswerTime, [&] { return has_ended() || is_over_; });
  lock.unlock();
  set_cause(own);  // unless there is one
  const End counts = cause();
  return counts.author == own.author && counts.code == code && counts.culprit == culprit;
}

End MemberLink::cause() const {
  const std::lock_guard lock(mutex_);
  return cause_;
}

void MemberLink::when_ended(std::function<void()> action) {
  std::unique_lock lock(mutex_);
  const bool is_late = has_ended();
  if (!is_late) when_ended_.swap(action);
  lock.unlock();
  if (is_late) action();
}

std::int64_t MemberLink::left_ns(int rank) const noexcept {
  return left_ns_[static_cast<std::size_t>(rank)].load(std::memory_order_acquire);
}

std::optional<std::string> MemberLink::ask(Question question, std::uint64_t argument) noexcept {
  std::string value;
  put_u32(value, static_cast<std::uint32_t>(question));
  put_u64(value, argument);
  std::unique_lock lock(mutex_);
  const std::uint32_t id = ++num_questions_;
  auto& answer = answers_[id];
  lock.unlock();
  send(Operation::kAsk, value, id);
  lock.lock();
  changed_.wait_for(lock, kAnswerTime, [&] { return is_over_ || answer.has_value(); });
  const bool is_told = answer && answer->status == store_protocol::Status::kOk;
  auto told = is_told ? std::optional(std::move(answer->value)) : std::nullopt;
  answers_.erase(id);
  return told;
}

// Any thread. What does not fit into the socket now is sent by the link's own.
void MemberLink::send(Operation operation, std::string value, std::uint32_t id) noexcept {
  const std::lock_guard lock(mutex_);
  unsent_ += encode(store_protocol::Request{operation, id, 0, {}, std::move(value)});
  flush();
  if (unsent_.empty()) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

// With the lock held. A connection that has ended shows when it is read.
void MemberLink::flush() noexcept {
  while (!unsent_.empty() && !is_over_) {
    const ssize_t sent =
        ::send(connection_.socket().get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (sent < 0) {
      if (!is_transient(errno)) unsent_.clear();
      return;
    }
    unsent_.erase(0, static_cast<std::size_t>(sent));
  }
}

void MemberLink::run() {
  take_received();  // what came with the reply to the join
  std::int64_t last_turn_ns = now_ns();
  while (!is_over_) {
    beat();
    std::array<pollfd, 2> entries{
        {{connection_.socket().get(), POLLIN, 0}, {wake_.get(), POLLIN, 0}}};
    if (has_unsent()) entries[0].events |= POLLOUT;
    poll(entries.data(), entries.size(), kBeatMs / 2);
    if (is_leaving_) return;
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t taken = read(wake_.get(), &count, sizeof(count));
    if ((entries[0].revents & POLLOUT) != 0) {
      const std::lock_guard lock(mutex_);
      flush();
    }
    const bool is_open = (entries[0].revents & ~POLLOUT) == 0 || receive();
    const std::int64_t now = now_ns();
    // Time in which this process was stopped is nobody's silence.
    if (now - last_turn_ns > Deadline::kStoppedNs) heard_ns_ += now - last_turn_ns;
    last_turn_ns = now;
    if (!is_open) {
      lose_server("its connection ended");
    } else if (now - heard_ns_ > silence_ns_) {
      give_up_server();
    }
  }
}

bool MemberLink::has_unsent() const {
  const std::lock_guard lock(mutex_);
  return !unsent_.empty();
}

void MemberLink::beat() {
  const std::int64_t now = now_ns();
  if (now < next_beat_ns_) return;
  next_beat_ns_ = now + kBeatNs;
  std::unique_lock lock(mutex_);
  const std::string place = place_.text();
  lock.unlock();
  send(Operation::kBeat, place);
}

// False when the connection has ended.
bool MemberLink::receive() {
  std::array<char, 16384> bytes;
  const ssize_t size = recv(connection_.socket().get(), bytes.data(), bytes.size(), 0);
  if (size == 0 || (size < 0 && !is_transient(errno))) return false;
  if (size < 0) return true;
  heard_ns_ = now_ns();
  received_.append({bytes.data(), static_cast<std::size_t>(size)});
  take_received();
  return !received_.is_oversized(store_protocol::kMaxFrameBytes);
}

void MemberLink::take_received() {
  while (const auto payload = received_.pop_frame()) {
    const auto reply = store_protocol::decode_reply(*payload);
    if (!reply) return lose_server("it does not speak the protocol");
    if (reply->status == store_protocol::Status::kEvent) {
      take_event(reply->value);
    } else {
      const std::lock_guard lock(mutex_);
      const auto question = answers_.find(reply->id);
      if (question != answers_.end()) question->second = *reply;
      changed_.notify_all();
    }
  }
}

void MemberLink::take_event(std::string_view event) {
  if (event.empty()) return;
  const std::string_view content = event.substr(1);
  switch (static_cast<Event>(event[0])) {
    case Event::kAlive: return;
    case Event::kMet:
      if (content.size() != 8) return;
      met_.store(get_u64(content, 0), std::memory_order_release);
      return ring();
    case Event::kLeft: {
      if (content.size() != 4 || get_u32(content, 0) >= left_ns_.size()) return;
      {
        const std::lock_guard lock(mutex_);
        left_ns_[get_u32(content, 0)].store(now_ns(), std::memory_order_release);
      }
      changed_.notify_all();
      return ring();
    }
    case Event::kLost: return act();
    case Event::kEnded:
      if (const auto end = End::parse(content)) set_cause(*end);
      return;
  }
}

void MemberLink::set_cause(const End& end) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (has_ended()) return;
    cause_ = end;
    has_ended_.store(true, std::memory_order_release);
  }
  act();
  changed_.notify_all();
  ring();
}

void MemberLink::act() noexcept {
  std::function<void()> action;
  {
    const std::lock_guard lock(mutex_);
    action.swap(when_ended_);
  }
  if (action) action();
}

// A rank 0 that goes on later finds unread that it was the cause itself; otherwise it would take
// the first connection that has ended meanwhile for a loss.
void MemberLink::give_up_server() {
  const End end{abort_code(Errc::kPeerLost), kServer, rank_,
                fmt::format("no sign of life for {:.1f} s: stopped, or its host is cut off",
                            static_cast<double>(silence_ns_) * 1e-9)};
  if (left_ns(kServer) == 0) send(Operation::kEnd, end.text());
  lose_server(end.reason);
}

// A server whose rank had left was to go, and says nothing of the others; but it stays for those
// that are not done.
void MemberLink::lose_server(const std::string& reason) {
  is_over_ = true;
  shutdown(connection_.socket().get(), SHUT_RDWR);
  if (left_ns(kServer) == 0) set_cause({abort_code(Errc::kPeerLost), kServer, -1, reason});
  if (is_listening_) act();
  changed_.notify_all();
  ring();
}

void MemberLink::ring() noexcept {
  bell_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake_all(bell_);
}

// Until the server has read it all: closing with something unread might discard it.
void MemberLink::say_goodbye() noexcept {
  const Deadline deadline = Deadline::after_ms(kGoodbyeMs);
  const Fd& socket = connection_.socket();
  for (bool has_sent = false; !is_over_ && !deadline.expired();) {
    if (!has_sent) {
      const std::lock_guard lock(mutex_);
      flush();
      has_sent = unsent_.empty();
      if (has_sent) shutdown(socket.get(), SHUT_WR);
    }
    pollfd entry{socket.get(), static_cast<short>(has_sent ? POLLIN : POLLIN | POLLOUT), 0};
    poll(&entry, 1, deadline.remaining_ms());
    std::array<char, 4096> bytes;
    const ssize_t size = recv(socket.get(), bytes.data(), bytes.size(), 0);
    if (size == 0 || (size < 0 && !is_transient(errno))) return;
  }
}

}  // namespace switchyard
