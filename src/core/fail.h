// SPDX-License-Identifier: Apache-2.0
//
// fail.h: how the library raises an Error. Messages follow one form:
//   <function>: <what is>, <what should be>[; <what to do>]
#pragma once

#include <utility>

#include <fmt/format.h>

#include "switchyard/error.h"

namespace switchyard {

template <typename... Args>
[[noreturn]] void fail(Errc code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

/// Throws unless `condition` holds. The arguments are evaluated either way: keep them cheap.
template <typename... Args>
void require(bool condition, Errc code, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]] {
    fail(code, format, std::forward<Args>(args)...);
  }
}

/// Throws an Error from errno: "open: /x: No such file or directory". kOutOfMemory where memory or
/// file descriptors are used up, else kSystem.
[[noreturn]] void fail_errno(const char* call, const std::string& subject);

}  // namespace switchyard
