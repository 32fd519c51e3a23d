// SPDX-License-Identifier: Apache-2.0
//
// plan_html.h: forecasts as one self-contained page: no network access, no script.
#pragma once

#include <string>

#include "plan_report.h"

namespace switchyard::cli {

/// Charts of time, bytes and memory against ranks; tables of all choices; constants and sources.
std::string to_html(const PlanReport& report);

}  // namespace switchyard::cli
