// SPDX-License-Identifier: Apache-2.0
//
// progress.h: a progress bar on stderr, shown only on a terminal and only for longer work.
#pragma once

#include <cstdint>
#include <string>

namespace switchyard::cli {

class Progress {
 public:
  /// `is_wanted` false: never shows anything.
  Progress(std::string label, std::int64_t total, bool is_wanted);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  void update(std::int64_t done);

 private:
  std::string label_;
  std::int64_t total_;
  bool is_wanted_;
  bool is_shown_ = false;
  std::int64_t start_ns_;
  std::int64_t next_ns_;
};

}  // namespace switchyard::cli
