// SPDX-License-Identifier: Apache-2.0
//
// plan_report.h: forecasts as text and as JSON (docs/plan.md has the schema).
#pragma once

#include <string>
#include <vector>

#include "forecast/forecast.h"
#include "plan.h"

namespace switchyard::cli {

struct PlanReport {
  PlanOptions options;
  forecast::Question question;
  std::vector<forecast::Forecast> forecasts;  ///< ascending by ranks
};

/// Null when no choice is possible.
const forecast::Choice* best_of(const forecast::Forecast& forecast);
/// "expanded, per_rank".
std::string name_of(const forecast::Choice& choice);

std::string to_text(const PlanReport& report);
std::string to_json(const PlanReport& report);

}  // namespace switchyard::cli
