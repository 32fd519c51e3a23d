// SPDX-License-Identifier: Apache-2.0
//
// socket_store.h: the store as a client of a StoreServer.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "transport/socket.h"
#include "transport/store.h"
#include "transport/store_protocol.h"

namespace switchyard {

class SocketStore final : public Store {
 public:
  /// Retries until a server listens at `address`, unless it is known to have listened there before:
  /// then nobody there means that it is gone. `timeout_ms` bounds this and each `set`.
  /// Errors: kTimeout, kInvalidArgument (the secret was refused), kPeerLost, kSystem.
  SocketStore(const Address& address, const std::string& secret, std::int64_t timeout_ms,
              bool was_served = false);

  void set(const std::string& key, const std::string& value) override {
    set_within(key, value, timeout_ms_);
  }
  void set_within(const std::string& key, const std::string& value, std::int64_t ms) override;
  std::optional<std::string> get(const std::string& key, const Deadline& deadline) override;

 private:
  std::optional<store_protocol::Reply> ask(store_protocol::Request request,
                                           const Deadline& deadline);
  bool receive(const Deadline& deadline);

  std::mutex mutex_;
  Address address_;
  std::int64_t timeout_ms_;
  Fd socket_;
  store_protocol::FrameBuffer received_;
  std::uint32_t num_requests_ = 0;
};

}  // namespace switchyard
