// SPDX-License-Identifier: Apache-2.0
//
// log.h: where the library's messages go: one line each, to stderr unless a callback is set:
//   2026-11-21 03:04:05.678 rank 2 warn  shm: ...
#pragma once

#include <functional>
#include <string_view>

#include "switchyard/export.h"

namespace switchyard {

/// From the most to the least urgent; kOff drops all.
enum class LogLevel { kError, kWarn, kInfo, kDebug, kTrace, kOff };

/// Receives one message, without a line end, on any thread. `rank` is -1 outside any group.
using LogCallback = std::function<void(LogLevel level, int rank, std::string_view subsystem,
                                       std::string_view text)>;

/// Sends messages to `callback` instead of stderr; an empty callback restores stderr.
SWITCHYARD_API void set_log_callback(LogCallback callback);

/// Drops messages above `level`. The default comes from SWITCHYARD_LOG_LEVEL, else kWarn.
SWITCHYARD_API void set_log_level(LogLevel level);

}  // namespace switchyard
