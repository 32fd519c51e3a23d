// SPDX-License-Identifier: Apache-2.0
//
// plan_measured.h: `plan --measured`: predictions beside measurements.
#pragma once

#include <string>
#include <vector>

#include "forecast/measured.h"
#include "plan.h"

namespace switchyard::cli {

/// Reads and predicts the files of the options. Errors: those of read_measured and find_machine.
std::vector<forecast::MeasuredFile> predict_measured(const PlanOptions& options);

/// A Markdown table, a line per measured row, and how far off the worst is.
std::string measured_text(const std::vector<forecast::MeasuredFile>& files);
std::string measured_json(const std::vector<forecast::MeasuredFile>& files);

}  // namespace switchyard::cli
