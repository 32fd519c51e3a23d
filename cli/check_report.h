// SPDX-License-Identifier: Apache-2.0
//
// check_report.h: what `check` says: a matrix for each group and a verdict, or JSON.
#pragma once

#include <string>
#include <vector>

#include "check.h"
#include "check_run.h"

namespace switchyard::cli {

struct CheckReport {
  CheckOptions options;
  std::vector<conformance::CheckCase> cases;
  std::vector<CheckResult> results;  ///< one for each case
  double seconds = 0;
  std::vector<std::string> gpus{};  ///< their names, where cases want them

  /// No case failed, and not all were skipped.
  bool is_ok() const;
};

std::string to_text(const CheckReport& report);
std::string to_json(const CheckReport& report);

/// One line a case: its number, from 1, and name.
std::string list_text(const std::vector<conformance::CheckCase>& cases);

}  // namespace switchyard::cli
