// SPDX-License-Identifier: Apache-2.0
//
// bench_html.h: the report as one self-contained page: no network access, no script.
#pragma once

#include <string>

#include "bench_report.h"

namespace switchyard::cli {

/// Charts of time against tokens, of the share of the floor and, where several SM budgets were
/// requested, of time against SMs; a table of all rows; a description of the machine. Follows the
/// reader's light or dark colour scheme.
std::string to_html(const BenchReport& report);

}  // namespace switchyard::cli
