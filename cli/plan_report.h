// SPDX-License-Identifier: Apache-2.0
//
// plan_report.h: forecasts as text and as JSON (docs/plan.md has the schema).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "forecast/forecast.h"
#include "plan.h"

namespace switchyard::cli {

struct PlanReport {
  PlanOptions options;
  forecast::Question question;
  std::vector<forecast::Forecast> forecasts;  ///< ascending by ranks
};

/// The choice that stands for all, see Forecast::shown; null: there is none.
const forecast::Choice* shown_of(const forecast::Forecast& forecast);
/// "expanded, per_rank".
std::string name_of(const forecast::Choice& choice);

/// For the pages' and the texts' heads and sections: what was asked, as names and values; what the
/// last columns of a choice say; the calls of the shown choice, a sentence each.
std::vector<std::pair<std::string, std::string>> settings_of(const PlanReport& report);
std::string verdict_of(const forecast::Forecast& forecast);
std::vector<std::string> calls_of(const forecast::Forecast& forecast);
/// Why layouts that are not ordered by expert are never the best, for a note below choices.
const char* layouts_note();

std::string to_text(const PlanReport& report);
std::string to_json(const PlanReport& report);

}  // namespace switchyard::cli
