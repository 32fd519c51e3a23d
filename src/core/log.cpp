// SPDX-License-Identifier: Apache-2.0

#include "core/log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include <spdlog/sinks/base_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "core/above_stdio.h"
#include "core/enum_names.h"
#include "core/settings.h"

namespace switchyard {
namespace {

thread_local int log_rank = -1;

// The environment is read once and holds until the program calls set_log_level.
std::atomic<LogLevel>& current_level() {
  static std::atomic<LogLevel> level = [] {
    const std::string text = setting("SWITCHYARD_LOG_LEVEL").text;
    return enum_from_name<LogLevel>(text).value_or(LogLevel::kWarn);
  }();
  return level;
}

// A line is one write to the end of the file, so that processes may share it.
class FileSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FileSink(int fd) : fd_(fd) {}
  ~FileSink() override { close(fd_); }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    (void)!write(fd_, line.data(), line.size());
  }
  void flush_() override {}

  int fd_;
};

using Logger = std::shared_ptr<spdlog::logger>;

Logger make_logger(std::shared_ptr<spdlog::sinks::sink> sink) {
  auto made = std::make_shared<spdlog::logger>("switchyard", std::move(sink));
  made->set_pattern("%Y-%m-%d %H:%M:%S.%e %v");
  made->set_level(spdlog::level::trace);
  return made;
}

// The file that SWITCHYARD_LOG_FILE names for this rank, or empty.
std::string log_file_of(int rank) {
  const std::string pattern = setting("SWITCHYARD_LOG_FILE").text;
  std::string path;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char next = i + 1 < pattern.size() ? pattern[i + 1] : ' ';
    if (pattern[i] != '%' || std::strchr("hpr%", next) == nullptr) {
      path += pattern[i];
      continue;
    }
    ++i;
    std::array<char, 256> host{};
    if (next == 'h') gethostname(host.data(), host.size() - 1);
    path += next == 'h'   ? std::string(host.data())
            : next == 'p' ? std::to_string(getpid())
            : next == 'r' ? rank < 0 ? std::string("-") : std::to_string(rank)
                          : std::string("%");
  }
  return path;
}

struct Sink {
  std::mutex mutex;
  LogCallback callback;
  Logger to_stderr = make_logger(std::make_shared<spdlog::sinks::stderr_sink_mt>());
  std::map<std::string, Logger> files;  // by path

  // A file that cannot be opened is said once; its lines go to stderr.
  Logger logger_of(int rank) {
    const std::string path = log_file_of(rank);
    if (path.empty()) return to_stderr;
    Logger& logger = files[path];
    if (logger != nullptr) return logger;
    constexpr mode_t kMode = 0644;
    const int fd = above_stdio(
        open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, kMode));
    const int error = errno;
    if (fd >= 0) return logger = make_logger(std::make_shared<FileSink>(fd));
    to_stderr->log(spdlog::level::critical,
                   fmt::format("rank {} warn  log: SWITCHYARD_LOG_FILE: {}: {}; lines go to stderr",
                               rank < 0 ? std::string("-") : std::to_string(rank), path,
                               std::strerror(error)));
    return logger = to_stderr;
  }
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
  Logger logger;
  {
    const std::lock_guard lock(sink().mutex);
    callback = sink().callback;
    if (!callback) logger = sink().logger_of(log_rank);
  }
  if (callback) {
    callback(level, log_rank, subsystem, text);
    return;
  }
  const char* name = enum_name(level);
  const std::string rank = log_rank < 0 ? std::string("-") : std::to_string(log_rank);
  logger->log(spdlog::level::critical,
              fmt::format("rank {} {:<5} {}: {}", rank, name, subsystem, text));
}

}  // namespace switchyard
