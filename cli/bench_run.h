// SPDX-License-Identifier: Apache-2.0
//
// bench_run.h: the work of one rank in `bench`.
#pragma once

#include <functional>
#include <string>

#include "switchyard/group.h"

#include "bench_report.h"

namespace switchyard::cli {

/// Collective. Measures the floors first, then each shape in order. On rank 0 the report is
/// complete and `say` receives each line of text as soon as it is known; on other ranks the report
/// is empty.
BenchReport run_bench(const Group& group, const BenchOptions& options,
                      const std::function<void(const std::string&)>& say);

}  // namespace switchyard::cli
