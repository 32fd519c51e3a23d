// SPDX-License-Identifier: Apache-2.0
//
// member_protocol.h: what a rank and the server of its group tell each other besides keys and
// values. A rank joins once, then reports; the server sends it events (replies with number 0).
//
//   rank to server                                         server to rank
//   kJoin   u32 rank, u32 size, u32 ms of silence          kAlive   (each kBeatMs)
//   kBeat   u32 phase, u64 call  (each kBeatMs)            kMet     u64 number
//   kMeet   u64 number                                     kLeft    u32 rank
//   kEnd    u32 code, u32 culprit, u32 author, reason      kEnded   as kEnd
//   kLeave  u8: 1 if its process has still to end well     kLeft    to the rank itself, too
//   kLeave  u8: 0, once it has, or need not                kLost    u32 rank: it did not
//   kAsk    u32 question, u64 argument                     the reply to it
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "transport/store_protocol.h"

namespace switchyard::member_protocol {

using store_protocol::get_u32;
using store_protocol::put_u32;

inline constexpr int kBeatMs = 250;
inline constexpr std::size_t kMaxReasonBytes = 4096;

enum class Event : std::uint8_t { kAlive = 1, kMet, kLeft, kEnded, kLost };
enum class Question : std::uint32_t { kPlaceOf = 1, kWhoIsMissing };

inline void put_u64(std::string& bytes, std::uint64_t value) {
  put_u32(bytes, static_cast<std::uint32_t>(value));
  put_u32(bytes, static_cast<std::uint32_t>(value >> 32));
}

inline std::uint64_t get_u64(std::string_view bytes, std::size_t offset) {
  return get_u32(bytes, offset) | std::uint64_t{get_u32(bytes, offset + 4)} << 32;
}

/// Who joins.
struct Join {
  std::uint32_t rank = 0;
  std::uint32_t size = 0;
  std::uint32_t silence_ms = 0;  ///< of a rank, after which it counts as lost

  std::string text() const {
    std::string bytes;
    for (const std::uint32_t value : {rank, size, silence_ms}) put_u32(bytes, value);
    return bytes;
  }
  static std::optional<Join> parse(std::string_view bytes) {
    if (bytes.size() != 12) return std::nullopt;
    return Join{get_u32(bytes, 0), get_u32(bytes, 4), get_u32(bytes, 8)};
  }
};

/// Where a rank is in its operations.
struct Place {
  std::uint32_t phase = 0;
  std::uint64_t call = 0;

  std::string text() const {
    std::string bytes;
    put_u32(bytes, phase);
    put_u64(bytes, call);
    return bytes;
  }
  static std::optional<Place> parse(std::string_view bytes) {
    if (bytes.size() != 12) return std::nullopt;
    return Place{get_u32(bytes, 0), get_u64(bytes, 4)};
  }
};

/// Why a group ended.
struct End {
  std::uint32_t code = 0;
  int culprit = -1;  ///< the rank to blame, or -1
  int author = -1;   ///< the rank that said so; -1: the server
  std::string reason;

  std::string text() const {
    std::string bytes;
    put_u32(bytes, code);
    put_u32(bytes, static_cast<std::uint32_t>(culprit));
    put_u32(bytes, static_cast<std::uint32_t>(author));
    return bytes + reason.substr(0, kMaxReasonBytes);
  }
  static std::optional<End> parse(std::string_view bytes) {
    if (bytes.size() < 12 || bytes.size() > 12 + kMaxReasonBytes) return std::nullopt;
    return End{get_u32(bytes, 0), static_cast<int>(get_u32(bytes, 4)),
               static_cast<int>(get_u32(bytes, 8)), std::string(bytes.substr(12))};
  }
};

}  // namespace switchyard::member_protocol
