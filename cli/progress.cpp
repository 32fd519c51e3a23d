// SPDX-License-Identifier: Apache-2.0

#include "progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include <fmt/format.h>

#include "core/clock.h"

namespace switchyard::cli {
namespace {

constexpr std::int64_t kFirstNs = 500'000'000;
constexpr std::int64_t kEveryNs = 100'000'000;
constexpr std::int64_t kWidth = 30;

}  // namespace

Progress::Progress(std::string label, std::int64_t total, bool is_wanted)
    : label_(std::move(label)),
      total_(std::max<std::int64_t>(1, total)),
      is_wanted_(is_wanted && isatty(STDERR_FILENO) == 1),
      start_ns_(now_ns()),
      next_ns_(start_ns_ + kFirstNs) {}

Progress::~Progress() {
  if (is_shown_) std::fputs("\r\033[K", stderr);
}

void Progress::update(std::int64_t done) {
  if (!is_wanted_ || now_ns() < next_ns_) return;
  next_ns_ = now_ns() + kEveryNs;
  is_shown_ = true;
  const std::int64_t filled = kWidth * done / total_;
  const double seconds = static_cast<double>(now_ns() - start_ns_) * 1e-9;
  const double left = seconds * static_cast<double>(total_ - done) /
                      static_cast<double>(std::max<std::int64_t>(1, done));
  fmt::print(stderr, "\r{} [{:#<{}}{:.<{}}] {} of {}, {:.0f} s left \033[K", label_, "", filled, "",
             kWidth - filled, done, total_, left);
  std::fflush(stderr);
}

}  // namespace switchyard::cli
