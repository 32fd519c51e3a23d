// SPDX-License-Identifier: Apache-2.0

#include "transport/hash_store.h"

#include <chrono>

namespace switchyard {

void HashStore::set(const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  values_[key] = value;
  changed_.notify_all();
}

std::optional<std::string> HashStore::get(const std::string& key, const Deadline& deadline) {
  std::unique_lock lock(mutex_);
  const auto has_key = [&] { return values_.count(key) != 0; };
  if (!changed_.wait_for(lock, std::chrono::nanoseconds(deadline.remaining_ns()), has_key)) {
    return std::nullopt;
  }
  return values_[key];
}

}  // namespace switchyard
