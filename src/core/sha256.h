// SPDX-License-Identifier: Apache-2.0
//
// sha256.h: SHA-256 (FIPS 180-4) and HMAC (RFC 2104) over it, for handshakes: short texts, not
// bulk data.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace switchyard {

inline constexpr std::size_t kSha256Bytes = 32;

/// The digest, kSha256Bytes bytes.
std::string sha256(std::string_view message);

/// Proves that who computed it has `key`. kSha256Bytes bytes.
std::string hmac_sha256(std::string_view key, std::string_view message);

}  // namespace switchyard
