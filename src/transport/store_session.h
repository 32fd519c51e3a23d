// SPDX-License-Identifier: Apache-2.0
//
// store_session.h: the server's end of one connection: its buffers, its handshake, its frames.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "transport/secret.h"
#include "transport/store_protocol.h"

namespace switchyard {

class StoreSession {
 public:
  /// `peer`: who is at the other end, for messages.
  StoreSession(Fd socket, std::string peer);
  /// Answers the hello with kFull, then ends.
  void turn_away() { is_turned_away_ = true; }
  bool is_turned_away() const { return is_turned_away_; }

  const Fd& socket() const { return socket_; }
  const std::string& peer() const { return peer_; }
  /// True once the client has proved that it has the secret.
  bool is_known() const { return step_ == Step::kKnown; }
  /// True until the client has said a whole hello.
  bool is_silent() const { return step_ == Step::kHello; }
  bool has_unsent() const { return !unsent_.empty(); }
  /// True when the connection is of no use any more: closed, refused or broken.
  bool is_gone() const { return is_gone_; }
  /// When the handshake must have ended; never for a known client.
  std::int64_t hello_end_ns() const { return hello_end_ns_; }
  std::int64_t since_ns() const { return since_ns_; }

  /// One read, so that a client that sends without pause cannot monopolize the server.
  void receive();
  /// The same, and forgets what it read.
  void discard();
  /// The next request of a known client; answers those of the handshake itself. Nothing when none
  /// is complete, or when the client was refused: `take_refusal` says why then, once.
  std::optional<store_protocol::Request> next_request(const std::string& secret);
  std::string_view take_refusal() { return std::exchange(refusal_, {}); }

  void reply(const store_protocol::Reply& answer);
  void flush();
  void end() { is_gone_ = true; }

 private:
  enum class Step { kHello, kProof, kKnown };

  void shake_hands(const store_protocol::Request& request, const std::string& secret);
  void refuse(const store_protocol::Request& request, std::string_view why,
              store_protocol::Status status = store_protocol::Status::kRefused);

  Fd socket_;
  std::string peer_;
  store_protocol::FrameBuffer received_;
  std::string unsent_;
  Challenges challenges_;
  Step step_ = Step::kHello;
  std::int64_t since_ns_ = now_ns();
  std::int64_t hello_end_ns_;
  std::string_view refusal_;
  bool is_turned_away_ = false;
  bool is_closing_ = false;  // refused: closed once the reply is sent
  bool is_gone_ = false;
};

}  // namespace switchyard
