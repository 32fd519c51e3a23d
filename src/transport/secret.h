// SPDX-License-Identifier: Apache-2.0
//
// secret.h: what the two ends of a connection do with the secret that they share: each proves to
// the other that it has it, by a keyed hash (HMAC-SHA-256) over a random challenge of either.
#pragma once

#include <string>
#include <string_view>

#include "transport/socket.h"

namespace switchyard {

inline constexpr std::size_t kChallengeBytes = 32;

/// The challenges of one handshake.
struct Challenges {
  std::string client;
  std::string server;
};

/// Random bytes, kChallengeBytes of them. Errors: kSystem.
std::string make_challenge();

/// What only a client, or only a server, with the secret can answer. Neither can be used as the
/// other's, or in another handshake.
std::string client_proof(std::string_view secret, const Challenges& challenges);
std::string server_proof(std::string_view secret, const Challenges& challenges);

/// A key that who has `secret` derives from it for one purpose; hexadecimal. It tells nothing of
/// the secret.
std::string derive_secret(std::string_view secret, std::string_view purpose);

/// Compares in a time that does not reveal how much of `given` is right.
bool secrets_equal(const std::string& given, const std::string& wanted) noexcept;

/// A random 128-bit secret, as 32 hexadecimal digits. Errors: kSystem.
std::string make_secret();

/// Errors: kInvalidArgument when `address` is TCP and there is no secret, or the secret is too
/// long.
void require_secret(const Address& address, const std::string& secret);

}  // namespace switchyard
