// SPDX-License-Identifier: Apache-2.0
//
// call.h: the edge of the C interface. Every exported function that can fail runs its work inside
// call(), which turns exceptions into a status and the thread's last error.
#pragma once

#include <string>
#include <utility>

#include <fmt/format.h>

#include "switchyard/c/base.h"
#include "switchyard/error.h"

namespace switchyard::capi {

/// The exported function that the calling thread is in, for messages.
const char* current_function() noexcept;

/// Sets current_function for its lifetime: callbacks may call the library again.
class CallScope {
 public:
  explicit CallScope(const char* function) noexcept;
  CallScope(const CallScope&) = delete;
  CallScope& operator=(const CallScope&) = delete;
  ~CallScope();

 private:
  const char* outer_;
};

/// Inside a catch block: keeps the exception's text as the thread's last error.
sy_status record_exception() noexcept;

/// What a callback's status stands for: with the thread's last error if that is its text.
Error error_of(const char* callback, sy_status status);
/// Throws what a callback's status stands for.
[[noreturn]] void throw_status(const char* callback, sy_status status);

template <typename Body>
sy_status call(const char* function, Body&& body) noexcept {
  const CallScope scope(function);
  try {
    std::forward<Body>(body)();
    return SY_OK;
  } catch (...) {
    return record_exception();
  }
}

/// Throws kInvalidArgument with the function's name in front unless `condition` holds.
template <typename... Args>
void check(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (condition) [[likely]]
    return;
  throw Error(
      Errc::kInvalidArgument,
      fmt::format("{}: {}", current_function(), fmt::format(format, std::forward<Args>(args)...)));
}

/// Where a call writes its result.
template <typename T>
T& out(T* pointer, const char* name) {
  check(pointer != nullptr, "{} is NULL, must be where the result goes", name);
  return *pointer;
}

/// A text that must be there.
inline const char* text(const char* given, const char* name) {
  check(given != nullptr, "{} is NULL, must be a text", name);
  return given;
}

inline std::string text_or_empty(const char* given) { return given == nullptr ? "" : given; }

}  // namespace switchyard::capi
