// SPDX-License-Identifier: Apache-2.0
//
// check_result.h: what became of a case of `check`, on one rank or on all.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "conformance/check_case.h"

namespace switchyard::cli {

struct CheckResult {
  bool is_done = false;
  std::string failure;  ///< empty: the case passed
  conformance::Agreement agreement;
  std::int64_t ns = 0;

  bool is_skipped() const { return is_done && !agreement.skipped.empty(); }
  bool has_passed() const { return is_done && failure.empty() && !is_skipped(); }
  bool has_failed() const { return !has_passed() && !is_skipped(); }
};

/// Runs this rank's part of a case. A failure propagates as an exception.
CheckResult run_part(const conformance::CheckCase& test, const Group& group, std::uint64_t seed);

/// Adds the part of another rank.
void merge(CheckResult& result, const CheckResult& part);

/// As it travels from a rank to whoever reports.
nlohmann::json json_of(const CheckResult& result);
CheckResult result_of(const nlohmann::json& json);

}  // namespace switchyard::cli
