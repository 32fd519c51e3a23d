// SPDX-License-Identifier: Apache-2.0

#include "transport/function_store.h"

#include <poll.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "core/fail.h"

namespace switchyard {
namespace {

constexpr int kAskAgainMs = 5;

// What `call` returns; what it throws, as an error of the library.
template <typename Call>
auto within(const char* function, const std::string& key, Call&& call) {
  try {
    return call();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    fail(Errc::kSystem, "store: the caller's {}(\"{}\") threw: {}", function, key, error.what());
  } catch (...) {
    fail(Errc::kSystem, "store: the caller's {}(\"{}\") threw", function, key);
  }
}

}  // namespace

FunctionStore::FunctionStore(StoreFunctions functions) : functions_(std::move(functions)) {
  require(functions_.set != nullptr && functions_.get != nullptr, Errc::kInvalidArgument,
          "group: StoreFunctions has no {}, must have both functions",
          functions_.set == nullptr ? "set" : "get");
}

void FunctionStore::set(const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  within("set", key, [&] { functions_.set(key, value); });
}

std::optional<std::string> FunctionStore::get(const std::string& key, const Deadline& deadline) {
  const std::lock_guard lock(mutex_);
  for (;;) {
    const std::int64_t left_ms = deadline.remaining_ms();
    auto value = within("get", key, [&] { return functions_.get(key, left_ms); });
    if (value || deadline.expired()) return value;
    poll(nullptr, 0, std::min(kAskAgainMs, deadline.remaining_ms()));  // it may return at once
  }
}

}  // namespace switchyard
