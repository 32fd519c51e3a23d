// SPDX-License-Identifier: Apache-2.0
//
// store.h: key-value rendezvous, for set-up only. Modelled on Gloo's rendezvous::Store.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/clock.h"

namespace switchyard {

class Store {
 public:
  Store() = default;
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;

  virtual void set(const std::string& key, const std::string& value) = 0;
  /// The same for words that may be lost: a store that can tell does not wait longer than this.
  virtual void set_within(const std::string& key, const std::string& value, std::int64_t ms) {
    (void)ms;
    set(key, value);
  }

  /// Waits until the key exists. nullopt when the deadline passes first.
  /// Errors: kPeerLost when the server is gone.
  virtual std::optional<std::string> get(const std::string& key, const Deadline& deadline) = 0;
};

}  // namespace switchyard
