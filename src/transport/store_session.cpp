// SPDX-License-Identifier: Apache-2.0

#include "transport/store_session.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <limits>

namespace switchyard {
namespace {

namespace protocol = store_protocol;

constexpr std::int64_t kHelloNs = 10'000'000'000;
constexpr std::size_t kMaxUnsentBytes = std::size_t{8} << 20;

}  // namespace

StoreSession::StoreSession(Fd socket, std::string peer)
    : socket_(std::move(socket)), peer_(std::move(peer)), hello_end_ns_(since_ns_ + kHelloNs) {}

void StoreSession::receive() {
  std::array<char, 65536> bytes;
  const ssize_t size = recv(socket_.get(), bytes.data(), bytes.size(), 0);
  if (size > 0) {
    received_.append({bytes.data(), static_cast<std::size_t>(size)});
  } else if (size == 0 || !is_transient(errno)) {
    is_gone_ = true;
  }
}

void StoreSession::discard() {
  receive();
  received_ = {};
}

std::optional<protocol::Request> StoreSession::next_request(const std::string& secret) {
  while (!is_gone_ && !is_closing_) {
    const std::uint32_t limit = is_known() ? protocol::kMaxFrameBytes : protocol::kMaxHelloBytes;
    const bool is_oversized = received_.is_oversized(limit);
    const auto payload = is_oversized ? std::nullopt : received_.pop_frame();
    if (!payload && !is_oversized) return std::nullopt;
    auto request = payload ? protocol::decode_request(*payload) : std::nullopt;
    if (!request) {
      refusal_ = "does not speak the protocol";
      is_gone_ = true;
    } else if (is_known()) {
      return request;
    } else {
      shake_hands(*request, secret);
    }
  }
  return std::nullopt;
}

void StoreSession::shake_hands(const protocol::Request& request, const std::string& secret) {
  const bool is_expected =
      request.operation ==
      (step_ == Step::kHello ? protocol::Operation::kHello : protocol::Operation::kProof);
  if (!is_expected) return refuse(request, "begins with a wrong hello");
  if (is_turned_away_) {
    return refuse(request, "finds no descriptor left; raise the limit (ulimit -n)",
                  protocol::Status::kFull);
  }
  if (step_ == Step::kHello) {
    if (request.key != protocol::kMagic || request.value.size() != kChallengeBytes) {
      return refuse(request, "begins with a wrong hello");
    }
    challenges_ = {request.value, make_challenge()};
    step_ = Step::kProof;
    return reply({protocol::Status::kOk, request.id, challenges_.server});
  }
  if (!secrets_equal(request.value, client_proof(secret, challenges_))) {
    return refuse(request, "has a wrong secret");
  }
  step_ = Step::kKnown;
  hello_end_ns_ = std::numeric_limits<std::int64_t>::max();
  reply({protocol::Status::kOk, request.id, server_proof(secret, challenges_)});
}

void StoreSession::refuse(const protocol::Request& request, std::string_view why,
                          protocol::Status status) {
  refusal_ = why;
  is_closing_ = true;
  reply({status, request.id, {}});
}

void StoreSession::reply(const protocol::Reply& answer) {
  if (is_gone_) return;
  unsent_ += protocol::encode(answer);
  flush();
  if (unsent_.size() > kMaxUnsentBytes) is_gone_ = true;  // the client never reads
}

void StoreSession::flush() {
  while (!unsent_.empty()) {
    const ssize_t sent = send(socket_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL);
    if (sent < 0) {
      if (!is_transient(errno)) is_gone_ = true;
      return;
    }
    unsent_.erase(0, static_cast<std::size_t>(sent));
  }
  if (is_closing_) is_gone_ = true;
}

}  // namespace switchyard
