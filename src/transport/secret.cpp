// SPDX-License-Identifier: Apache-2.0

#include "transport/secret.h"

#include <sys/random.h>

#include "core/fail.h"
#include "core/sha256.h"

namespace switchyard {
namespace {

std::string random_bytes(std::size_t size) {
  std::string bytes(size, '\0');
  if (getrandom(bytes.data(), size, 0) != static_cast<ssize_t>(size)) {
    fail_errno("getrandom", "secret");
  }
  return bytes;
}

std::string hexadecimal(const std::string& bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return text;
}

std::string proof(std::string_view secret, std::string_view who, const Challenges& challenges) {
  return hmac_sha256(secret, std::string(who) + challenges.client + challenges.server);
}

}  // namespace

std::string make_challenge() { return random_bytes(kChallengeBytes); }

std::string client_proof(std::string_view secret, const Challenges& challenges) {
  return proof(secret, "switchyard client ", challenges);
}

std::string server_proof(std::string_view secret, const Challenges& challenges) {
  return proof(secret, "switchyard server ", challenges);
}

std::string derive_secret(std::string_view secret, std::string_view purpose) {
  return hexadecimal(hmac_sha256(secret, "switchyard key " + std::string(purpose)));
}

bool secrets_equal(const std::string& given, const std::string& wanted) noexcept {
  // Visits every byte of `given`, so that the duration reveals only lengths.
  unsigned difference = given.size() == wanted.size() ? 0 : 1;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const char other = wanted.empty() ? '\0' : wanted[i % wanted.size()];
    difference |= static_cast<unsigned>(static_cast<unsigned char>(given[i] ^ other));
  }
  return difference == 0;
}

std::string make_secret() { return hexadecimal(random_bytes(16)); }

void require_secret(const Address& address, const std::string& secret) {
  require(address.kind == Address::Kind::kUnix || !secret.empty(), Errc::kInvalidArgument,
          "store: {} needs a secret; set SWITCHYARD_SECRET to the same text on every rank",
          address.text());
  constexpr std::size_t kMaxSecretBytes = 1024;
  require(secret.size() <= kMaxSecretBytes, Errc::kInvalidArgument,
          "store: the secret has {} characters, must have at most {}", secret.size(),
          kMaxSecretBytes);
}

}  // namespace switchyard
