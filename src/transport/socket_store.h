// SPDX-License-Identifier: Apache-2.0
//
// socket_store.h: the store as a client of a StoreServer.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "transport/store.h"
#include "transport/store_connection.h"

namespace switchyard {

class SocketStore final : public Store {
 public:
  /// As StoreConnection. `timeout_ms` bounds this and each `set`.
  SocketStore(const Address& address, const std::string& secret, std::int64_t timeout_ms,
              bool was_served = false);

  void set(const std::string& key, const std::string& value) override {
    set_within(key, value, timeout_ms_);
  }
  void set_within(const std::string& key, const std::string& value, std::int64_t ms) override;
  std::optional<std::string> get(const std::string& key, const Deadline& deadline) override;

 private:
  std::mutex mutex_;
  std::int64_t timeout_ms_;
  StoreConnection connection_;
};

}  // namespace switchyard
