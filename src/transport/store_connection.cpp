// SPDX-License-Identifier: Apache-2.0

#include "transport/store_connection.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "core/fail.h"
#include "core/interrupt.h"
#include "core/log.h"
#include "transport/lookup.h"
#include "transport/secret.h"
#include "transport/stream_socket.h"

namespace switchyard {
namespace {

namespace protocol = store_protocol;

constexpr int kRetryMs = 20;
constexpr int kMaxRetryMs = 320;  // of names, whose server is asked again each time

// The tries of one connection.
class Tries {
 public:
  Tries(const Address& address, std::int64_t timeout_ms, bool was_served)
      : address_(address),
        timeout_ms_(timeout_ms),
        was_served_(was_served),
        is_name_(address.kind == Address::Kind::kTcp &&
                 read_number(address.host, address.port).found.empty()) {}

  const Deadline& deadline() const { return deadline_; }

  Fd connect() {
    for (;;) {
      NoConnection none;
      std::optional<Fd> socket = connect_to(address_, deadline_, &none);
      if (socket) return *std::move(socket);
      const std::string text = address_.text();
      require(!was_served_ || !none.is_refused, Errc::kPeerLost, "store: nobody serves {} any more",
              text);
      require(!was_served_, Errc::kSystem, "connect: {}: {}", text, none.why);
      wait(none.why);
    }
  }

  // Before the next try, if there is time for one. Errors: kTimeout, kAborted.
  void wait(const std::string& why) {
    if (std::exchange(why_, why) != why) {
      log(LogLevel::kInfo, "store", "nobody serves at {} yet ({})", address_.text(), why);
    }
    require(!is_interrupted(), Errc::kAborted, "store: interrupted before anybody served at {}",
            address_.text());
    poll(nullptr, 0, std::min(pause_ms_, deadline_.remaining_ms()));
    require(!deadline_.expired(), Errc::kTimeout, "store: nobody serves at {} within {:.1f} s ({})",
            address_.text(), static_cast<double>(timeout_ms_) * 1e-3, why);
    if (is_name_) pause_ms_ = std::min(2 * pause_ms_, kMaxRetryMs);
  }

 private:
  const Address& address_;
  std::int64_t timeout_ms_;
  bool was_served_;
  bool is_name_;
  Deadline deadline_ = Deadline::after_ms(timeout_ms_);
  int pause_ms_ = kRetryMs;
  std::string why_;  // of the last try
};

}  // namespace

StoreConnection::StoreConnection(const Address& address, const std::string& secret,
                                 std::int64_t timeout_ms, bool was_served)
    : address_(address) {
  require_secret(address, secret);
  for (Tries tries(address_, timeout_ms, was_served);;) {
    socket_ = tries.connect();
    const std::optional<PeerIdentity> identity = peer_identity(socket_);
    require(!identity || identity->uid == geteuid() || identity->uid == 0, Errc::kInvalidArgument,
            "store: {} is served by user {}, but this is user {}", address.text(),
            identity ? identity->uid : 0, geteuid());
    try {
      shake_hands(secret, tries.deadline());
      return;
    } catch (const Error& error) {
      if (error.code() != Errc::kPeerLost) throw;
      tries.wait("it closes the connection");
      received_ = {};
    }
  }
}

void StoreConnection::shake_hands(const std::string& secret, const Deadline& deadline) {
  const auto say = [&](protocol::Operation operation, std::string key, std::string value) {
    const auto reply = ask({operation, 0, 0, std::move(key), std::move(value)}, deadline);
    require(reply.has_value(), Errc::kTimeout, "store: {} does not answer", address_.text());
    require(reply->status != protocol::Status::kFull, Errc::kOutOfMemory,
            "store: the process that serves {} has no descriptor left for another connection; "
            "raise its limit (ulimit -n)",
            address_.text());
    require(reply->status == protocol::Status::kOk, Errc::kInvalidArgument,
            "store: {} refused the secret; SWITCHYARD_SECRET must be the same on every rank",
            address_.text());
    return reply->value;
  };
  Challenges challenges{make_challenge(), {}};
  challenges.server =
      say(protocol::Operation::kHello, std::string(protocol::kMagic), challenges.client);
  const std::string proof = say(protocol::Operation::kProof, {}, client_proof(secret, challenges));
  require(secrets_equal(proof, server_proof(secret, challenges)), Errc::kInvalidArgument,
          "store: {} does not prove that it has the secret; another program listens there",
          address_.text());
}

// Skips replies to earlier requests that timed out; their ids differ.
std::optional<protocol::Reply> StoreConnection::ask(protocol::Request request,
                                                    const Deadline& deadline) {
  request.id = ++num_requests_;
  const std::string frame = protocol::encode(request);
  require(frame.size() - 4 <= protocol::kMaxFrameBytes, Errc::kInvalidArgument,
          "store: key \"{}\" and its value have {} bytes, must have at most {}",
          request.key.substr(0, 64), frame.size() - 4, protocol::kMaxFrameBytes);
  send_all(socket_, std::as_bytes(std::span(frame)), deadline);
  for (;;) {
    while (const auto payload = received_.pop_frame()) {
      auto reply = protocol::decode_reply(*payload);
      require(reply.has_value(), Errc::kSystem, "store: {} does not speak the protocol",
              address_.text());
      if (reply->id == request.id) return reply;
    }
    require(!received_.is_oversized(protocol::kMaxFrameBytes), Errc::kSystem,
            "store: {} does not speak the protocol", address_.text());
    if (!receive(deadline)) return std::nullopt;
  }
}

// False when the deadline passed first.
bool StoreConnection::receive(const Deadline& deadline) {
  if (!wait_readable(socket_, deadline)) return false;
  std::array<char, 16384> bytes;
  const ssize_t size = recv(socket_.get(), bytes.data(), bytes.size(), 0);
  if (size > 0) {
    received_.append({bytes.data(), static_cast<std::size_t>(size)});
    return true;
  }
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  fail(Errc::kPeerLost, "store: {} closed the connection", address_.text());
}

}  // namespace switchyard
