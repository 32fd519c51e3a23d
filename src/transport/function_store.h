// SPDX-License-Identifier: Apache-2.0
//
// function_store.h: the caller's own key-value functions as a store.
#pragma once

#include <mutex>
#include <string>

#include "switchyard/group.h"

#include "transport/store.h"

namespace switchyard {

class FunctionStore final : public Store {
 public:
  /// Errors: kInvalidArgument when a function is missing.
  explicit FunctionStore(StoreFunctions functions);

  /// Errors: kSystem with the words of what the function threw; an Error passes as it is.
  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> get(const std::string& key, const Deadline& deadline) override;

 private:
  std::mutex mutex_;
  StoreFunctions functions_;
};

}  // namespace switchyard
