// SPDX-License-Identifier: Apache-2.0
//
// store_world.h: a store of each kind, with its server if it has one, and its clients.
#pragma once

#include <unistd.h>

#include <memory>
#include <string>

#include "support/temp_folder.h"
#include "transport/file_store.h"
#include "transport/function_store.h"
#include "transport/hash_store.h"
#include "transport/socket_store.h"
#include "transport/store_server.h"

namespace switchyard::test {

inline constexpr std::int64_t kStoreTimeoutMs = 10'000;

inline Deadline soon() { return Deadline::after_ms(kStoreTimeoutMs); }

inline Address fresh_unix_address() {
  static int number = 0;
  return Address::parse("unix:@switchyard-store-test-" + std::to_string(getpid()) + "-" +
                        std::to_string(number++));
}

// A server, if this kind of store has one, and its clients.
class StoreWorld {
 public:
  explicit StoreWorld(const std::string& kind) {
    if (kind == "hash" || kind == "functions") {
      hash_ = std::make_shared<HashStore>();
      has_functions_ = kind == "functions";
    } else if (kind == "file") {
      folder_ = std::make_unique<TempFolder>();
    } else {
      const bool is_tcp = kind == "tcp";
      server = StoreServer::start(
          is_tcp ? Address::parse("tcp://127.0.0.1:0") : fresh_unix_address(), "sesame");
    }
  }

  std::shared_ptr<Store> client() const {
    if (has_functions_) {
      return std::make_shared<FunctionStore>(
          StoreFunctions{[hash = hash_](const std::string& key, const std::string& value) {
                           hash->set(key, value);
                         },
                         // Does not wait: the library calls it again.
                         [hash = hash_](const std::string& key, std::int64_t) {
                           return hash->get(key, Deadline::after_ms(0));
                         }});
    }
    if (hash_) return hash_;
    if (folder_) return std::make_shared<FileStore>(folder_->file("store"), kStoreTimeoutMs);
    return std::make_shared<SocketStore>(server->address(), "sesame", kStoreTimeoutMs);
  }

  std::unique_ptr<StoreServer> server;

 private:
  std::shared_ptr<HashStore> hash_;
  bool has_functions_ = false;
  std::unique_ptr<TempFolder> folder_;
};

}  // namespace switchyard::test
