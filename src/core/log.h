// SPDX-License-Identifier: Apache-2.0
//
// log.h (internal): one logger and one line format, with the calling thread's rank in the prefix.
#pragma once

#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "switchyard/log.h"

namespace switchyard {

/// Sets the rank shown in this thread's messages; -1 shows none.
void set_log_rank(int rank) noexcept;
bool log_enabled(LogLevel level) noexcept;
void write_log(LogLevel level, std::string_view subsystem, std::string_view text);

template <typename... Args>
void log(LogLevel level, std::string_view subsystem, fmt::format_string<Args...> format,
         Args&&... args) {
  if (!log_enabled(level)) return;
  write_log(level, subsystem, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace switchyard
