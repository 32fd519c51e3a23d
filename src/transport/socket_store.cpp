// SPDX-License-Identifier: Apache-2.0

#include "transport/socket_store.h"

#include "core/fail.h"

namespace switchyard {

namespace protocol = store_protocol;

SocketStore::SocketStore(const Address& address, const std::string& secret, std::int64_t timeout_ms,
                         bool was_served)
    : timeout_ms_(timeout_ms), connection_(address, secret, timeout_ms, was_served) {}

void SocketStore::set_within(const std::string& key, const std::string& value, std::int64_t ms) {
  const std::lock_guard lock(mutex_);
  const auto reply =
      connection_.ask({protocol::Operation::kSet, 0, 0, key, value}, Deadline::after_ms(ms));
  const std::string address = connection_.address().text();
  require(reply.has_value(), Errc::kTimeout, "store: {} does not answer", address);
  require(reply->status == protocol::Status::kOk, Errc::kOutOfMemory,
          "store: {} is full; key \"{}\" has {} bytes", address, key, value.size());
}

std::optional<std::string> SocketStore::get(const std::string& key, const Deadline& deadline) {
  const std::lock_guard lock(mutex_);
  const auto wait_ms = static_cast<std::uint32_t>(deadline.remaining_ms());
  // Waits slightly longer than the server does, so that its answer is not narrowly missed.
  const Deadline answer = Deadline::after_ms(std::int64_t{wait_ms} + 50);
  const auto reply = connection_.ask({protocol::Operation::kGet, 0, wait_ms, key, {}}, answer);
  if (!reply || reply->status != protocol::Status::kOk) return std::nullopt;
  return reply->value;
}

}  // namespace switchyard
