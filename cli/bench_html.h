// SPDX-License-Identifier: Apache-2.0
//
// bench_html.h: the report as one page that needs nothing else: no network, no script.
#pragma once

#include <string>

#include "bench_report.h"

namespace switchyard::cli {

/// Charts of time against tokens, of the share of the floor and, where several SM budgets were
/// asked for, of time against SMs; all rows as a table; where it was measured. Light and dark.
std::string to_html(const BenchReport& report);

}  // namespace switchyard::cli
