// SPDX-License-Identifier: Apache-2.0
//
// store_protocol.h: the frames that a store's client and server exchange.
//
//   frame    u32 payload bytes, payload
//   request  u8 operation, u32 id, u32 milliseconds to wait, u32 key bytes, key, value
//   reply    u8 status, u32 id, value
//
// Numbers are little-endian on every machine. Lengths are checked before anything is stored, so a
// hostile client costs at most one frame of memory. The secret that both ends share never travels:
//
//   hello    key kMagic, value: the client's challenge       its reply: the server's challenge
//   proof    value: client_proof(secret, both challenges)    its reply: server_proof(the same)
//
// The client proves itself first, so that whoever connects learns nothing made from the secret.
// What follows the handshake is neither encrypted nor signed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace switchyard::store_protocol {

inline constexpr std::string_view kMagic = "switchyard store 2";
inline constexpr std::uint32_t kMaxFrameBytes = 1u << 20;
inline constexpr std::uint32_t kMaxHelloBytes = 4096;  ///< until the secret is accepted

/// From kJoin on: member_protocol.h.
enum class Operation : std::uint8_t {
  kHello = 1,
  kSet,
  kGet,
  kProof,
  kJoin,
  kBeat,
  kMeet,
  kEnd,
  kLeave,
  kAsk,
};
inline constexpr Operation kLastOperation = Operation::kAsk;
enum class Status : std::uint8_t { kOk, kNothing, kRefused, kFull, kEvent };
inline constexpr Status kLastStatus = Status::kEvent;

struct Request {
  Operation operation = Operation::kHello;
  std::uint32_t id = 0;
  std::uint32_t wait_ms = 0;
  std::string key;
  std::string value;
};

struct Reply {
  Status status = Status::kOk;
  std::uint32_t id = 0;
  std::string value;
};

inline void put_u32(std::string& bytes, std::uint32_t value) {
  for (int shift = 0; shift < 32; shift += 8) bytes += static_cast<char>(value >> shift & 0xFF);
}

inline std::uint32_t get_u32(std::string_view bytes, std::size_t offset) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    value |= std::uint32_t{static_cast<unsigned char>(bytes[offset + i])} << (8 * i);
  }
  return value;
}

inline std::string encode(const Request& request) {
  std::string frame;
  put_u32(frame, static_cast<std::uint32_t>(13 + request.key.size() + request.value.size()));
  frame += static_cast<char>(request.operation);
  put_u32(frame, request.id);
  put_u32(frame, request.wait_ms);
  put_u32(frame, static_cast<std::uint32_t>(request.key.size()));
  return frame + request.key + request.value;
}

inline std::string encode(const Reply& reply) {
  std::string frame;
  put_u32(frame, static_cast<std::uint32_t>(5 + reply.value.size()));
  frame += static_cast<char>(reply.status);
  put_u32(frame, reply.id);
  return frame + reply.value;
}

/// nullopt when the payload is not a request.
inline std::optional<Request> decode_request(std::string_view payload) {
  if (payload.size() < 13 || payload[0] < 1 || payload[0] > static_cast<char>(kLastOperation)) {
    return std::nullopt;
  }
  const std::uint32_t key_bytes = get_u32(payload, 9);
  if (key_bytes > payload.size() - 13) return std::nullopt;
  return Request{static_cast<Operation>(payload[0]), get_u32(payload, 1), get_u32(payload, 5),
                 std::string(payload.substr(13, key_bytes)),
                 std::string(payload.substr(13 + key_bytes))};
}

inline std::optional<Reply> decode_reply(std::string_view payload) {
  if (payload.size() < 5 || payload[0] < 0 || payload[0] > static_cast<char>(kLastStatus)) {
    return std::nullopt;
  }
  return Reply{static_cast<Status>(payload[0]), get_u32(payload, 1),
               std::string(payload.substr(5))};
}

/// Cuts a stream of bytes into frames.
class FrameBuffer {
 public:
  void append(std::string_view bytes) { bytes_.append(bytes); }

  /// True when the next frame claims to be longer than `max_bytes`.
  bool is_oversized(std::uint32_t max_bytes) const {
    return bytes_.size() >= 4 && get_u32(bytes_, 0) > max_bytes;
  }

  /// The payload of the next frame, once it is complete.
  std::optional<std::string> pop_frame() {
    if (bytes_.size() < 4 || bytes_.size() - 4 < get_u32(bytes_, 0)) return std::nullopt;
    const std::uint32_t size = get_u32(bytes_, 0);
    std::string payload = bytes_.substr(4, size);
    bytes_.erase(0, 4 + std::size_t{size});
    return payload;
  }

 private:
  std::string bytes_;
};

}  // namespace switchyard::store_protocol
