// SPDX-License-Identifier: Apache-2.0

#include "core/log.h"

#include <array>
#include <atomic>
#include <memory>
#include <mutex>

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "core/settings.h"

namespace switchyard {
namespace {

constexpr std::array<const char*, 6> kLevelNames{"error", "warn", "info", "debug", "trace", "off"};

thread_local int log_rank = -1;

// The environment is read once and holds until the program calls set_log_level.
std::atomic<LogLevel>& current_level() {
  static std::atomic<LogLevel> level = [] {
    const std::string text = setting("SWITCHYARD_LOG_LEVEL").text;
    for (std::size_t i = 0; i < kLevelNames.size(); ++i) {
      if (text == kLevelNames[i]) return static_cast<LogLevel>(i);
    }
    return LogLevel::kWarn;
  }();
  return level;
}

struct Sink {
  std::mutex mutex;
  LogCallback callback;
  std::shared_ptr<spdlog::logger> logger = [] {
    auto made = std::make_shared<spdlog::logger>("switchyard",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%Y-%m-%d %H:%M:%S.%e %v");
    made->set_level(spdlog::level::trace);
    return made;
  }();
};

// Never destroyed: a thread may still log while the process exits.
Sink& sink() {
  static Sink& instance = *new Sink;
  return instance;
}

}  // namespace

void set_log_callback(LogCallback callback) {
  const std::lock_guard lock(sink().mutex);
  std::swap(sink().callback, callback);  // the former one ends outside the lock: it may log
}

void set_log_level(LogLevel level) { current_level() = level; }

void set_log_rank(int rank) noexcept { log_rank = rank; }

bool log_enabled(LogLevel level) noexcept {
  const LogLevel limit = current_level();
  return limit != LogLevel::kOff && level <= limit;
}

void write_log(LogLevel level, std::string_view subsystem, std::string_view text) {
  LogCallback callback;
  {
    const std::lock_guard lock(sink().mutex);
    callback = sink().callback;
  }
  if (callback) {
    callback(level, log_rank, subsystem, text);
    return;
  }
  const char* name = kLevelNames[static_cast<std::size_t>(level)];
  const std::string rank = log_rank < 0 ? std::string("-") : std::to_string(log_rank);
  sink().logger->log(spdlog::level::critical,
                     fmt::format("rank {} {:<5} {}: {}", rank, name, subsystem, text));
}

}  // namespace switchyard
