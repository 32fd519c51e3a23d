// SPDX-License-Identifier: Apache-2.0
//
// hash_store.h: the store for ranks that are threads of one process.
#pragma once

#include <condition_variable>
#include <mutex>
#include <string>
#include <unordered_map>

#include "transport/store.h"

namespace switchyard {

class HashStore final : public Store {
 public:
  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> get(const std::string& key, const Deadline& deadline) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::unordered_map<std::string, std::string> values_;
};

}  // namespace switchyard
