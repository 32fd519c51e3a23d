// SPDX-License-Identifier: Apache-2.0
//
// check_report.h: the output of `check`: a matrix per group and a verdict, or JSON.
#pragma once

#include <string>
#include <vector>

#include "check.h"
#include "check_run.h"

namespace switchyard::cli {

struct CheckReport {
  CheckOptions options;
  std::vector<conformance::CheckCase> cases;
  std::vector<CheckResult> results;  ///< one per case
  double seconds = 0;
  std::vector<std::string> gpus{};  ///< names of the GPUs when there are cases that need them

  /// True when no case failed and not all were skipped.
  bool is_ok() const;
};

std::string to_text(const CheckReport& report);
std::string to_json(const CheckReport& report);

/// Returns one line per case: its number, starting at 1, and its name.
std::string list_text(const std::vector<conformance::CheckCase>& cases);

}  // namespace switchyard::cli
