// SPDX-License-Identifier: Apache-2.0
//
// prefix_store.h: a namespace in another store, so that groups of one job do not share keys.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "transport/store.h"

namespace switchyard {

class PrefixStore final : public Store {
 public:
  PrefixStore(std::string prefix, std::shared_ptr<Store> store)
      : prefix_(std::move(prefix)), store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override {
    store_->set(prefix_ + key, value);
  }
  void set_within(const std::string& key, const std::string& value, std::int64_t ms) override {
    store_->set_within(prefix_ + key, value, ms);
  }
  std::optional<std::string> get(const std::string& key, const Deadline& deadline) override {
    return store_->get(prefix_ + key, deadline);
  }

 private:
  std::string prefix_;
  std::shared_ptr<Store> store_;
};

}  // namespace switchyard
